"""The commands to run after `compare`: what would settle a suspicion, or show the place."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison

__all__ = ["next_commands"]

_DEFAULT = "anchors"
_ANOTHER_START = 1000.0  # eps; no rerun that starts a rounding error away drifts so far


def next_commands(found: Comparison, runs: tuple[str, str], store: str) -> list[str]:
    """What goes on from this verdict, to be pasted into a shell; nothing where all is well.

    runs: A and B as they were asked for: names, paths or URLs.
    """
    if found.verdict == "suspect" and _settled_by_noise(found) and found.alignment is not None:
        from anchorlib.diagnosis import noise_line

        place = _place_of(runs[0], store)
        return [noise_line(found.alignment.a, found.alignment.b, store=place)]
    if found.verdict == "incomparable":
        return [_line("names", run, store) for run in runs]
    if found.verdict in ("suspect", "unexpected") and found.first is not None:
        at = found.origins[0].place if found.origins else found.first.place
        others = {one.a: one.b for one in found.renamed}
        names = (at.name, others.get(at.name, at.name))
        steps = (at.step, at.step + found.step_offset)
        return [
            _line("stats", run, store, "--tensor", join(name, at.kind), "--step", str(step))
            for run, name, step in zip(runs, names, steps, strict=True)
        ]
    return []


def _settled_by_noise(found: Comparison) -> bool:
    """Whether noise runs are what lacks: not where they were given, or parameters are others."""
    return not found.noise and not any(
        one.cls == "starts_unequal" and one.measure.error_eps > _ANOTHER_START
        for one in found.origins
    )


def _line(command: str, run: str, store: str, *words: str) -> str:
    """One `anchor` line; what a shell would read is quoted, what a terminal would obey escaped."""
    where = [] if store == _DEFAULT or _is_place(run) else ["--store", store]
    return escape(shlex.join(["anchor", command, run, *words, *where]))


def _is_place(run: str) -> bool:
    """Whether the run says itself where it is, as a path or a URL."""
    return "://" in run or os.sep in run or run.endswith(".zarr")


def _place_of(run: str, store: str) -> str | None:
    """The store that has the run; None for the one every command looks in."""
    if "://" in run:
        return run.rpartition("/")[0]
    if _is_place(run):
        return str(Path(run).parent)
    return None if store == _DEFAULT else store
