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
_BLAMED = ("not_rounding", "nonfinite")
_ANOTHER_START = 1000.0  # eps; no rerun that starts a rounding error away drifts so far


def next_commands(found: Comparison, runs: tuple[str, str], store: str) -> list[str]:
    """What goes on from this verdict, to be pasted into a shell; nothing where all is well.

    What no command does is said as a comment.

    runs: A and B as they were asked for: names, paths or URLs.
    """
    if found.verdict == "incomparable":
        return [_line("names", run, store) for run in runs]
    if found.verdict not in ("suspect", "unexpected"):
        return []
    blamed = any(one.cls in _BLAMED for one in found.origins)
    if not blamed and (told := _outside(found, runs, store)):
        return told
    if found.verdict == "suspect" and not found.noise and found.alignment is not None:
        from anchorlib.noise_runs import noise_line

        place = _place_of(runs[0], store)
        return [noise_line(found.alignment.a, found.alignment.b, store=place)]
    return _looking(found, runs, store)


def _looking(found: Comparison, runs: tuple[str, str], store: str) -> list[str]:
    """The lines that show the record to blame in both runs."""
    if found.first is None:
        return []
    blamed = [one for one in found.origins if one.cls in _BLAMED] or list(found.origins)
    at = blamed[0].place if blamed else found.first.place
    others = {one.a: one.b for one in found.renamed}
    names = (at.name, others.get(at.name, at.name))
    steps = (at.step, at.step + found.step_offset)
    return [
        _line("stats", run, store, "--tensor", join(name, at.kind), "--step", str(step))
        for run, name, step in zip(runs, names, steps, strict=True)
    ]


def _outside(found: Comparison, runs: tuple[str, str], store: str) -> list[str]:
    """What to do where the runs began otherwise, or were recorded too late; else nothing."""
    unequal = [one for one in found.origins if one.cls == "starts_unequal"]
    if any(one.measure.measured == "shape" for one in unequal):
        return [
            "# what both make of a whole step does not depend on how it was cut:",
            _line("compare", runs[0], store, runs[1], "--tensor", "*@updated", other=runs[1]),
        ]
    if any(not one.measure.error_eps <= _ANOTHER_START for one in unequal) or (
        unequal and found.noise
    ):
        seeds = found.config_diff.get("torch.initial_seed")
        if seeds is not None:
            return [f"# give both the same seed (torch.manual_seed): now {seeds[0]} and {seeds[1]}"]
        advice = "# give both the same checkpoint, and the same data in the same order"
        return [advice, *_looking(found, runs, store)]
    if found.origins and all(one.cls == "window_start" for one in found.origins):
        if not found.origins[0].orphaned and _of_optimizer(found.origins[0].place.kind):
            return ["# was the optimizer's state restored where the run was resumed?"]
        return ["# record both again, every pass of the first steps, in mode All"]
    return []


def _of_optimizer(kind: str) -> bool:
    return kind in ("updated", "delta") or kind.startswith("opt.")


def _line(command: str, run: str, store: str, *words: str, other: str | None = None) -> str:
    """One `anchor` line; what a shell would read is quoted, what a terminal would obey escaped.

    other: a second run among the words.
    """
    placed = _is_place(run) and (other is None or _is_place(other))
    where = [] if store == _DEFAULT or placed else ["--store", store]
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
