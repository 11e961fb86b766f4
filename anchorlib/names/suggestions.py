"""Suggestions of what a user may have meant, for the end of an error message."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable

from anchorlib.names.escaping import quoted

__all__ = ["near", "one_of", "suggest"]

_LIMIT = 3
_COMPARED = 50  # the most choices that difflib compares, at some 0.1 ms for each


def suggest(text: str, choices: Iterable[str]) -> str:
    """Return an error message's end, "; did you mean 'fc2.bias'?", or "" if no choice is near."""
    meant = near(text, choices)
    return f"; did you mean {one_of(meant)}?" if meant else ""


def one_of(choices: Iterable[str]) -> str:
    """Return at least one choice as a sentence lists them: `'a', 'b' or 'c'`."""
    *head, last = map(quoted, choices)
    return f"{', '.join(head)} or {last}" if head else last


def near(text: str, choices: Iterable[str]) -> list[str]:
    """Return at most three choices that `text` may mean, the likeliest first; or an empty list.

    These are the choices that differ from `text` in case alone. Where there are none, they are the
    choices that are `text` without or with modules before it (`fc1` and `model.fc1`), the nearest
    length first. Where there are none of these either, it is the one choice that is spelt most like
    `text`, if any is close enough.
    """
    pool = list(dict.fromkeys(choices))
    folded = text.casefold()
    same = [choice for choice in pool if choice.casefold() == folded]
    return (same or _same_path(text, pool) or _same_spelling(folded, pool))[:_LIMIT]


def _same_path(text: str, pool: list[str]) -> list[str]:
    if not text:
        return []
    choices = [
        choice
        for choice in pool
        if choice.endswith(f".{text}") or (choice and text.endswith(f".{choice}"))
    ]
    return sorted(choices, key=lambda choice: abs(len(choice) - len(text)))


def _same_spelling(folded: str, pool: list[str]) -> list[str]:
    by_folded: dict[str, str] = {}
    for choice in pool:
        by_folded.setdefault(choice.casefold(), choice)
    candidates = _most_alike(folded, list(by_folded))
    close = difflib.get_close_matches(folded, candidates, n=_LIMIT)
    # Swapped letters are the likelier slip: 'bsae' means 'base', not 'same'.
    close.sort(key=lambda choice: sorted(choice) != sorted(folded))
    return [by_folded[spelling] for spelling in close[:1]]


def _most_alike(text: str, pool: list[str]) -> list[str]:
    """Return the 50 choices of `pool` that share most pairs of neighbouring letters with `text`.

    This is fast, and spares difflib, which is slow, from comparing hundreds of choices.
    """
    if len(pool) <= _COMPARED:
        return pool
    wanted = _pairs(text)

    def likeness(choice: str) -> float:
        pairs = _pairs(choice)
        return len(wanted & pairs) / (len(wanted | pairs) or 1)

    return heapq.nlargest(_COMPARED, pool, key=likeness)


def _pairs(text: str) -> set[str]:
    return {text[at : at + 2] for at in range(len(text))}
