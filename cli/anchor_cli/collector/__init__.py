"""What `anchor serve` needs: the collector's settings, its token, and the handling of signals."""

from anchor_cli.collector.collector_plan import CollectorPlan
from anchor_cli.collector.shown_credentials import ShownCredentials, say_exports
from anchor_cli.collector.signals import Signals

__all__ = [
    "CollectorPlan",
    "ShownCredentials",
    "Signals",
    "say_exports",
]
