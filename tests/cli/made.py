"""Runs made by hand, and ways to call `anchor`: in this process, and as a user does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchor_cli.main import main
from anchorlib.record import Coordinates, Flag, Gap, Record
from anchorlib.store import Writer
from anchorlib.summary import summarise
from tests.warm import warm_python
from tests.writing import put

BIAS = np.array([0.0, 0.5, -0.25, 3.0], np.float32)
HOSTILE = "\x1b[31mfc\n\u202e<b>&$x$</b>"
"""A name that would colour a terminal, break a line, reverse text and open an HTML tag."""


def record(
    name: str = "fc2.bias",
    kind: str = "grad",
    raw: np.ndarray | None = BIAS,
    *,
    dtype: str | None = None,
    mode: str = "all",
    rank: int = 0,
    order: int = 0,
    time_ns: int = 1_700_000_000_000_000_000,
    dropped: np.ndarray | None = None,
    flags: Flag = Flag.NONE,
    scale: float = 1.0,
    count: int = 1,
    **where: Any,
) -> Record:
    """A record at `where` (step, pass_index, call, phase); `dropped` keeps a summary alone."""
    array = dropped if raw is None else raw
    assert array is not None
    element = dtype or array.dtype.name
    return Record(
        name=name,
        kind=kind,
        mode=mode,
        coordinates=Coordinates(**{"step": 0, **where}),
        order=order,
        time_ns=time_ns,
        dtype=element,
        shape=array.shape,
        raw=raw,
        summary=summarise(np.ascontiguousarray(array), element),
        rank=rank,
        flags=flags if raw is not None or mode == "summary" else flags | Flag.VALUE_DROPPED,
        scale=scale,
        count=count,
    )


def make_run(
    store: Path,
    records: Sequence[Record],
    run: str = "run1",
    *,
    rank: int = 0,
    gaps: Sequence[Gap] = (),
    close: bool = True,
) -> None:
    """Write one rank of a run; records take their order from their place."""
    writer = Writer.open(store, run, rank)
    put(writer, [_ordered(one, number) for number, one in enumerate(records)])
    writer.gap(gaps)
    writer.publish()
    if close:
        writer.close()


def _ordered(one: Record, order: int) -> Record:
    return replace(one, order=order)


@dataclass(frozen=True)
class Outcome:
    """The result of a call of `anchor`: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The single JSON document on stdout, parsed."""
        return json.loads(self.out, parse_constant=_no_constant)


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def anchor(*arguments: object) -> Outcome:
    """Call `anchor` in this process, with pipes for stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(int(code), out.getvalue(), err.getvalue())


COMMAND = [sys.executable, "-m", "anchor_cli"]


def spawn(
    *arguments: object, loaded: Sequence[str] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """Call `anchor` as a process of its own; its Python has torch and these modules loaded."""
    command = [warm_python(*loaded), *COMMAND[1:], *map(str, arguments)]
    settings = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run(command, check=False, **settings)


def environment(**variables: str) -> Mapping[str, str]:
    """This process's environment with `variables` on top."""
    return {**os.environ, **variables}
