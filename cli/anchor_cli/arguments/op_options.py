"""The options --stage, --module and --step, which select traced operations of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from anchor_cli.arguments.record_selection import Selection, parse_steps
from anchor_cli.terminal import note, steps_of

if TYPE_CHECKING:
    from anchorlib import Run
    from anchorlib.operations import Op

__all__ = ["ModuleOption", "StageOption", "StepOption", "chosen_steps", "tell_gaps", "traced_ops"]

StageOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="STAGE",
        help="Only operations of this stage: forward, recompute, backward, accumulate or "
        "optimizer.",
        show_default=False,
    ),
]
ModuleOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="NAME",
        help="Only operations of this module, or of several modules, as 'encoder.*'.",
        show_default=False,
    ),
]
StepOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="A[:B]",
        help="Only step A, or steps A to B - 1.",
        show_default=False,
    ),
]
_TRACE = "trace one with session.trace(2), ANCHOR_TRACE=0:2 or `anchor run --trace 0:2 -- COMMAND`"


def traced_ops(run: Run, rank: int | None = None) -> list[Op]:
    """Returns the traced operations of all ranks of a run, or of one rank.

    Raises OptionError, which says how to trace operations, where none was traced.
    """
    from anchorlib.errors import OptionError

    ops = run.ops(rank=rank)
    if not ops:
        of_rank = "" if rank is None else f"rank {rank} of "
        raise OptionError(f"no operation of {of_rank}{run.name} was traced: {_TRACE}")
    return ops


def chosen_steps(text: str | None, ops: Sequence[Op]) -> range:
    """Returns the steps that `--step` names, whether or not they were traced.

    text: the option's value, as "5", "0:3" or "-1"; negative steps count from the last traced step.
        None means all steps up to the last traced one.
    ops: the traced operations, at least one.
    Raises OptionError for an invalid text and for an empty range.
    """
    first, stop = parse_steps(text)
    last = max(op.step for op in ops)
    chosen = Selection(first, stop).within(last)
    return range(chosen.first, last + 1 if chosen.stop is None else chosen.stop)


def tell_gaps(run: Run, rank: int | None = None) -> None:
    """Prints on stderr which steps of a run, or of one rank, could not be traced, and why."""
    from anchorlib.names import escape

    for gap in run.op_gaps(rank):
        when = steps_of(gap.first_step, gap.last_step)
        note(f"{run.name} lacks {escape(gap.reason)}: {when}")
