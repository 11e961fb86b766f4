"""The checks of `anchor doctor`, and their findings."""

from anchor_cli.checkups.check_result import Finding
from anchor_cli.checkups.checkup import checkup
from anchor_cli.checkups.destinations import spools, storage
from anchor_cli.checkups.installation import environment, packages, summaries, without_password

__all__ = [
    "Finding",
    "checkup",
    "environment",
    "packages",
    "spools",
    "storage",
    "summaries",
    "without_password",
]
