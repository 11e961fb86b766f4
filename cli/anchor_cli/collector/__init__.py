"""What `anchor serve` starts, and how it is told to stop."""

from anchor_cli.collector.plan import Plan
from anchor_cli.collector.showing import Shown, say_exports
from anchor_cli.collector.signals import Signals

__all__ = [
    "Plan",
    "Shown",
    "Signals",
    "say_exports",
]
