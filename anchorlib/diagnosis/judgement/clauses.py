"""Clauses about an origin: which of them name a cause, and which only describe its values."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ValueClause", "name_a_change"]


class ValueClause(str):
    """A clause that only describes how A's and B's values differ, not what made them differ."""

    __slots__ = ()


def name_a_change(clauses: Iterable[str]) -> bool:
    """Return whether any clause says how B computes differently, not only how its values differ."""
    return not all(isinstance(clause, ValueClause) for clause in clauses)
