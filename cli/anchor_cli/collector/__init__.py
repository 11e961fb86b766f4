"""The collector that `anchor serve` starts: its settings, its token, and the signals it obeys."""

from anchor_cli.collector.collector_plan import Plan
from anchor_cli.collector.shown_credentials import Shown, say_exports
from anchor_cli.collector.signals import Signals

__all__ = [
    "Plan",
    "Shown",
    "Signals",
    "say_exports",
]
