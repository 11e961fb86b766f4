"""`anchor verify`: checks everything that a run stores.

Every value is compared with the digest that was made where the value was captured; rows and
metadata are compared with their checksums.
"""

from __future__ import annotations

from anchor_cli.arguments import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.progress import progress
from anchor_cli.terminal import document, emit, this_screen
from anchor_cli.verification import verified

__all__ = ["EXAMPLES", "verify_run"]

EXAMPLES = examples("anchor verify run1", "anchor verify grpc://127.0.0.1:50051/run1 --json")


def verify_run(
    run: RunArgument, *, store: StoreOption = "anchors", as_json: JsonOption = False
) -> int:
    """Read every stored value and row again, and compare it with its checksum.

    Exit code 1 where a value or row does not fit, else 3 where observations were not recorded, else
    0.
    """
    from anchorlib.store import find_run

    stored_run = find_run(run, store)
    with progress(f"verifying {stored_run.name}") as tick:
        report = verified(stored_run, tick)
    if as_json:
        document(report.as_json())
    else:
        emit(report.lines(this_screen()))
    return report.code
