"""`anchor ranks`: which ranks of a run leave their peers, and with which record."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli import complete
from anchor_cli.exits import ExitCode
from anchor_cli.names import spans
from anchor_cli.options import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.terminal import Screen, document, emit, this_screen
from anchor_cli.words import counted, figure

if TYPE_CHECKING:
    from anchorlib.peers import Outlier, RankAnswer

__all__ = ["EXAMPLES", "outlier_text", "show_ranks"]

EXAMPLES = examples("anchor ranks run1", "anchor ranks run1 --tensor '*@value' --json")

_SHOWN = 20  # outliers told one by one; --json has all
_MEANING = {
    "digest": "its bits are not those that {peers} agree on",
    "parting": "they agreed before and differ from here on; no majority says which are right",
    "nan": "it has NaN or infinities where {peers} have none",
    "norm": "its size is {ratio} times that of {peers}",
}
_PLURAL = {
    "digest": "their bits are not those that {peers} agree on",
    "nan": "they have NaN or infinities where {peers} have none",
    "norm": "their size is up to {ratio} times that of {peers}",
}


def show_ranks(
    run: RunArgument,
    *,
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor",
            "-t",
            metavar="SEL",
            help="Look at these tensors alone, as '*@value'; may be repeated.",
            show_default=False,
            autocompletion=complete.selectors,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Say which ranks of a run leave their peers, and with which record.

    A parameter that ranks hold alike tells by its digests: one flipped bit is found. What each
    rank has for itself tells by NaN that its peers have not, and by a norm far from theirs. Ranks
    that are missing, or that ended before the others, are said.

    Exit code 1 where a rank leaves its peers, else 3 where ranks are missing or ended early, else
    0.
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
    yield screen.style(_head(answer), 1)
    yield from _wrapped(_looked_at(answer), screen)
    for one in answer.outliers[:_SHOWN]:
        yield from _wrapped(outlier_text(one), screen)
    if len(answer.outliers) > _SHOWN:
        yield f"and {len(answer.outliers) - _SHOWN} more: --json has them all"
    if answer.missing:
        yield from _wrapped(f"missing: {_ranks(answer.missing)} recorded nothing", screen)
    ends: dict[int, list[int]] = {}
    for early in answer.ended_early:
        ends.setdefault(early.last_step, []).append(early.rank)
    for step, ranks in ends.items():
        last = answer.ended_early[0].run_last_step
        text = f"ended early: {_ranks(tuple(ranks))} at step {step}, the run at step {last}"
        yield from _wrapped(text, screen)


def _head(answer: RankAnswer) -> str:
    """The run and its ranks, folded."""
    if not answer.ranks:
        return f"{answer.run}  no rank has recorded anything"
    apart = {rank for one in answer.outliers for rank in one.ranks}
    told = f", {len(apart)} leave their peers" if len(apart) > 1 else ", 1 leaves its peers"
    return f"{answer.run}  {_ranks(answer.ranks)}{told if apart else ''}"


def _looked_at(answer: RankAnswer) -> str:
    if len(answer.ranks) < 2:
        return "a rank needs others to be held against"
    own = answer.series - answer.replicated
    text = (
        f"{answer.replicated} series replicated, held against each other bit for bit; "
        f"{own} of each rank's own, by norm and NaN"
    )
    return text if answer.outliers else f"{text}: nothing leaves its peers"


def outlier_text(one: Outlier) -> str:
    """One outlier as a sentence; names in it are escaped."""
    from anchorlib.names import escape, join

    several = len(one.ranks) > 1
    meaning = _PLURAL.get(one.evidence, _MEANING[one.evidence]) if several else None
    text = (meaning or _MEANING[one.evidence]).format(
        peers=_peers(len(one.peers)), ratio=figure(one.ratio or 0.0)
    )
    places = (("pass", one.pass_index), ("call", one.call))
    where = "".join(f", {word} {number}" for word, number in places if number)
    phase = "" if one.phase == "train" else f", phase {escape(one.phase)}"
    tensors = f" of {counted(one.tensors, 'tensor')}" if one.tensors > 1 else ""
    return (
        f"{_ranks(one.ranks)} first at step {one.step}{where}{phase} in "
        f"{escape(join(one.name, one.kind))}: {text}; {counted(one.records, 'record')}{tensors}"
    )


def _peers(number: int) -> str:
    return "1 other" if number == 1 else f"{number:,} others"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"


def _wrapped(text: str, screen: Screen) -> list[str]:
    width = screen.width or screen.asked
    if width is None:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
