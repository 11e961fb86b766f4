"""Many names in short: one prefix for all names that begin with it, as h.1.* for a block's."""

from __future__ import annotations

__all__ = ["folded"]


def folded(names: set[str], every: set[str]) -> list[str]:
    """The names, where the shortest prefix that no other name has stands for all that have it.

    every: all names, among them those that no prefix may stand for.
    """
    short: dict[str, None] = {}
    others = every - names
    for name in sorted(names):
        parts = name.split(".")
        prefixes = (".".join(parts[:length]) + "." for length in range(1, len(parts)))
        sole = (
            prefix for prefix in prefixes if not any(other.startswith(prefix) for other in others)
        )
        prefix = next(sole, "")
        alone = sum(other.startswith(prefix) for other in names) == 1
        short[f"{prefix}*" if prefix and not alone else name] = None
    return list(short)
