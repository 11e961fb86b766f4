"""What `anchor serve` needs: a collector's settings, its token, its start and end by signals."""

from anchor_cli.collector.archiving import ARCHIVE_AFTER
from anchor_cli.collector.collector_plan import CollectorPlan
from anchor_cli.collector.serving import collect, say_problems
from anchor_cli.collector.signals import Signals

__all__ = [
    "ARCHIVE_AFTER",
    "CollectorPlan",
    "Signals",
    "collect",
    "say_problems",
]
