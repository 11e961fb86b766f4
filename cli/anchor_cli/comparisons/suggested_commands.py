"""Suggests commands that the user may run after `anchor compare`.

These commands decide whether a suspicion is right, or show the records that are to blame. Each
function gets the runs A and B as the user named them: by name, path or URL.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Origin

__all__ = ["next_commands"]

_DEFAULT = "anchors"
_BLAMED = ("not_rounding", "nonfinite")
_ANOTHER_START = 1000.0  # in eps; a rerun that starts a rounding error away does not drift so far


def next_commands(comparison: Comparison, runs: tuple[str, str], store: str) -> list[str]:
    """Returns the commands to paste into a shell next; [] for the verdicts identical and expected.

    Advice that no command can carry out is a shell comment (# …).

    runs: A and B. store: the value of --store, the place of runs that are named by name.
    """
    if comparison.verdict == "incomparable":
        return [_line("names", run, store) for run in runs]
    if comparison.verdict not in ("suspect", "unexpected"):
        return []
    blamed = any(one.cls in _BLAMED for one in comparison.origins)
    if not blamed and (advice := _outside(comparison, runs, store)):
        return advice
    if (
        comparison.verdict == "suspect"
        and not comparison.noise
        and comparison.alignment is not None
    ):
        from anchorlib.noise_runs import noise_line

        place = _place_of(runs[0], store)
        return [noise_line(comparison.alignment.a, comparison.alignment.b, store=place)]
    return _looking(comparison, runs, store)


def _looking(comparison: Comparison, runs: tuple[str, str], store: str) -> list[str]:
    """Returns an `anchor stats` command for each run, which shows the record that is to blame.

    To blame is the first origin (a record that differs although its inputs are equal) that rounding
    does not explain, else the first origin, else the first record that differs. Advice to trace the
    step may follow. Returns [] where no record differs.
    """
    if comparison.first is None:
        return []
    blamed = [one for one in comparison.origins if one.cls in _BLAMED] or list(comparison.origins)
    at = blamed[0].place if blamed else comparison.first.place
    others = {one.a: one.b for one in comparison.renamed}
    names = (at.name, others.get(at.name, at.name))
    steps = (at.step, at.step + comparison.step_offset)
    return [
        *(
            _line("stats", run, store, "--tensor", join(name, at.kind), "--step", str(step))
            for run, name, step in zip(runs, names, steps, strict=True)
        ),
        *_tracing(comparison, blamed, steps),
    ]


def _tracing(
    comparison: Comparison, blamed: Sequence[Origin], steps: tuple[int, int]
) -> Iterator[str]:
    """Yields advice to trace the first blamed step, where no change in B's computation is known.

    Nothing is yielded where the runs' traced operations were compared, or where the first blamed
    origin may be rounding.

    blamed: the origins (records that differ although their inputs are equal) to blame, in order.
    steps: the step of the first of them in A, and the same step in B, whose numbers may differ.
    """
    if comparison.ops is not None or not blamed or blamed[0].cls != "not_rounding":
        return
    if not blamed[0].names_change:
        first, second = (f"{step}:{step + 1}" for step in steps)
        traced = first if first == second else f"{first} (B: {second})"
        yield f"# record both with ANCHOR_TRACE={traced} to see the operation and its line"


def _outside(comparison: Comparison, runs: tuple[str, str], store: str) -> list[str]:
    """Returns advice where the cause of the difference lies before or outside the recording.

    That is where the runs started from different values, or where recording began too late. Returns
    [] where neither is the case.
    """
    unequal = [one for one in comparison.origins if one.cls == "starts_unequal"]
    if any(one.measure.measured == "shape" for one in unequal):
        return [
            "# the updates of a whole step do not depend on how a run splits the step:",
            _line("compare", runs[0], store, runs[1], "--tensor", "*@updated", other=runs[1]),
        ]
    if any(not one.measure.error_eps <= _ANOTHER_START for one in unequal) or (
        unequal and comparison.noise
    ):
        seeds = comparison.config_diff.get("torch.initial_seed")
        if seeds is not None:
            return [f"# give both the same seed (torch.manual_seed): now {seeds[0]} and {seeds[1]}"]
        advice = "# give both the same checkpoint, and the same data in the same order"
        return [advice, *_looking(comparison, runs, store)]
    if comparison.origins and all(one.cls == "window_start" for one in comparison.origins):
        if not comparison.origins[0].orphaned and _of_optimizer(comparison.origins[0].place.kind):
            return ["# was the optimizer's state restored where the run was resumed?"]
        return ["# record both again, every pass of the first steps, in mode All"]
    return []


def _of_optimizer(kind: str) -> bool:
    return kind in ("updated", "delta") or kind.startswith("opt.")


def _line(command: str, run: str, store: str, *words: str, other: str | None = None) -> str:
    """Returns an `anchor` command as one line, quoted for a shell and escaped for a terminal.

    `--store` is added where a run is named by its name and `store` is not the default.

    command: the command's name. words: what follows the run.
    other: a second run, where `words` has one.
    """
    placed = _is_place(run) and (other is None or _is_place(other))
    where = [] if store == _DEFAULT or placed else ["--store", store]
    return escape(shlex.join(["anchor", command, run, *words, *where]))


def _is_place(run: str) -> bool:
    """Returns whether a run was named by a path or a URL, which needs no `--store`."""
    return "://" in run or os.sep in run or run.endswith(".zarr")


def _place_of(run: str, store: str) -> str | None:
    """Returns the store of a run: the beginning of its path or URL; for a name, `store`.

    None stands for the default store.
    """
    if "://" in run:
        return run.rpartition("/")[0]
    if _is_place(run):
        return str(Path(run).parent)
    return None if store == _DEFAULT else store
