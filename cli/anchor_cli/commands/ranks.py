"""`anchor ranks`: says which ranks of a run differ from their peers, and in which record."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import JsonOption, RunArgument, StoreOption, complete, examples
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import Screen, document, emit, this_screen

if TYPE_CHECKING:
    from anchorlib.peers import RankAnswer

__all__ = ["EXAMPLES", "show_ranks"]

EXAMPLES = examples("anchor ranks run1", "anchor ranks run1 --tensor '*@value' --json")

_SHOWN = 20  # outliers that are listed; --json has all


def show_ranks(
    run: RunArgument,
    *,
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor",
            "-t",
            metavar="SEL",
            help="Look only at these tensors, as '*@value'; may be repeated.",
            show_default=False,
            autocompletion=complete.selectors,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Say which ranks of a run differ from the other ranks, and from which record on.

    Replicated tensors are compared by digest, so that a single flipped bit is found. Tensors that
    differ from rank to rank by nature are judged by their norm, and by NaN that other ranks do not
    have. Ranks that are missing, or that ended before the others, are named.

    Exit code 1 where a rank differs, else 3 where ranks are missing or ended early, else 0.
    """
    from anchorlib.peers import outliers

    answer = outliers(run, store=store, tensors=tensor or "*")
    if as_json:
        document(answer.to_dict())
    else:
        emit(_lines(answer, this_screen()))
    if answer.outliers:
        return ExitCode.DIFFERENCE
    return ExitCode.DONE if answer.complete else ExitCode.INCOMPLETE


def _lines(answer: RankAnswer, screen: Screen) -> Iterator[str]:
    from anchorlib.peers import outlier_text, ranks_text

    yield screen.style(_head(answer), 1)
    yield from _wrapped(_looked_at(answer), screen)
    for one in answer.outliers[:_SHOWN]:
        yield from _wrapped(outlier_text(one), screen)
    if len(answer.outliers) > _SHOWN:
        yield f"and {len(answer.outliers) - _SHOWN} more: --json has them all"
    if answer.missing:
        yield from _wrapped(f"missing: {ranks_text(answer.missing)} recorded nothing", screen)
    ends: dict[int, list[int]] = {}
    for early in answer.ended_early:
        ends.setdefault(early.last_step, []).append(early.rank)
    for step, ranks in ends.items():
        last = answer.ended_early[0].run_last_step
        text = f"ended early: {ranks_text(tuple(ranks))} at step {step}, the run at step {last}"
        yield from _wrapped(text, screen)


def _head(answer: RankAnswer) -> str:
    """Returns the first line: the run, its ranks, and how many ranks differ from their peers."""
    from anchorlib.peers import ranks_text

    if not answer.ranks:
        return f"{answer.run}  no rank has recorded anything"
    apart = {rank for one in answer.outliers for rank in one.ranks}
    leaving = f", {len(apart)} leave their peers" if len(apart) > 1 else ", 1 leaves its peers"
    return f"{answer.run}  {ranks_text(answer.ranks)}{leaving if apart else ''}"


def _looked_at(answer: RankAnswer) -> str:
    if len(answer.ranks) < 2:
        return "one rank alone cannot be compared with peers"
    own = answer.series - answer.replicated
    text = (
        f"{answer.replicated} series replicated, held against each other bit for bit; "
        f"{own} of each rank's own, by norm and NaN"
    )
    return text if answer.outliers else f"{text}: nothing leaves its peers"


def _wrapped(text: str, screen: Screen) -> list[str]:
    width = screen.width or screen.asked
    if width is None:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
