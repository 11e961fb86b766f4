"""Run one training in two checkouts, and fail if the second computes other bits.

    python same_bits.py BASE HEAD --out same-bits -- python train.py

COMMAND runs in BASE and in HEAD, recorded as the runs `base` and `head` of the store OUT, each
with its own folder in front of PYTHONPATH. The exit code is that of `anchor compare`: 0 for the
same bits, 1 for a difference; or 2 if the training itself fails. After the comparison OUT also has
compare.xml (JUnit) and compare.html (a page).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FAILED = 2


def main() -> int:
    """Train in both checkouts, compare the runs, and return the exit code."""
    options = _options()
    out: Path = options.out.resolve()
    if out.exists():
        return _failed(f"{out} is there already: give --out a new folder")
    for run, folder in (("base", options.base.resolve()), ("head", options.head.resolve())):
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        recorded = {"ANCHOR_STORE": str(out), "ANCHOR_RUN": run, "PYTHONPATH": path}
        if code := _called(options.command, folder, recorded):
            return _failed(f"the training of {run} ended with exit code {code}")
    return _called(_comparison(out, options.fail_on), out, {})


def _comparison(out: Path, fail_on: str) -> list[str]:
    command = [sys.executable, "-m", "anchor_cli", "compare", "base", "head", "--store", str(out)]
    command += ["--fail-on", fail_on]
    command += ["--junit", str(out / "compare.xml"), "--html", str(out / "compare.html")]
    return [*command, "--github"] if os.environ.get("GITHUB_ACTIONS") == "true" else command


def _called(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> int:
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def _failed(why: str) -> int:
    print(f"same_bits: {why}", file=sys.stderr)
    return FAILED


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", type=Path, help="the checkout to compare with")
    parser.add_argument("head", type=Path, help="the checkout that may differ from it")
    parser.add_argument("--out", type=Path, default=Path("same-bits"), help="a folder, made here")
    parser.add_argument(
        "--fail-on",
        choices=["suspect", "unexpected"],
        default="suspect",
        help="unexpected: let a difference pass that is rounding",
    )
    parser.add_argument("command", nargs="+", help="the training, after --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
