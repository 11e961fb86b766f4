"""Lists of names made short: h.1.* for all names that begin with h.1., those of a block."""

from __future__ import annotations

__all__ = ["folded"]


def folded(names: set[str], every: set[str]) -> list[str]:
    """Return `names`, sorted, with one entry `h.1.*` for all names that begin with `h.1.`.

    Of a name's prefixes the shortest is taken that no name outside `names` has. A name that is
    alone under its prefix stays as it is. every: `names`, and all other names.
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
