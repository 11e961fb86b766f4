"""The checks of `anchor doctor`: of a run, of stores and spools, and of the installation."""

from anchor_cli.checkups.check_result import CheckResult
from anchor_cli.checkups.checkup import checkup
from anchor_cli.checkups.destinations import spools, storage
from anchor_cli.checkups.installation import environment, packages, summaries, without_password

__all__ = [
    "CheckResult",
    "checkup",
    "environment",
    "packages",
    "spools",
    "storage",
    "summaries",
    "without_password",
]
