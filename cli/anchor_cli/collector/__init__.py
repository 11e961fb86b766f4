"""The collector that `anchor serve` starts: its settings, its token, and the signals it obeys."""

from anchor_cli.collector.collector_plan import CollectorPlan
from anchor_cli.collector.shown_credentials import ShownCredentials, say_exports
from anchor_cli.collector.signals import Signals

__all__ = [
    "CollectorPlan",
    "ShownCredentials",
    "Signals",
    "say_exports",
]
