"""Where tests write: what killed runs left there goes when the next one begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.places import remove_left


def test_the_places_of_killed_runs_are_removed_and_no_others(tmp_path: Path) -> None:
    program = (
        "import os, sys; from tests.places import own_place; print(own_place(), flush=True); "
        "os.kill(os.getpid(), 9)"
    )
    told = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(tmp_path), "TMPDIR": str(tmp_path)}
    told.pop("PYTEST_XDIST_WORKER", None)
    killed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        env=told,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    prefix, namespace, owner, ending = left.name.rsplit("-", 3)
    assert prefix == "anchorlib-tests"
    others = (
        f"{prefix}-{namespace}-{os.getpid()}-{ending}",
        f"{prefix}-{namespace}x-{owner}-{ending}",
        f"{prefix}-{namespace}-{10**30}-{ending}",
        f"{prefix}-{ending}",
        "run1.zarr",
    )
    for name in others:
        (tmp_path / name).mkdir()
    (left / "file").write_text("left")
    remove_left(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {*others}
