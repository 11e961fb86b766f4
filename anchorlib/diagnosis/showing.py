"""How a comparison shows itself at a prompt and in a notebook, and as a frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anchorlib.diagnosis.sizes import Measure
from anchorlib.names import escape, join
from anchorlib.reading import as_frame, html_table, html_text

if TYPE_CHECKING:
    import pandas as pd

    from anchorlib.diagnosis.comparison import Comparison
    from anchorlib.diagnosis.judgement import Origin
    from anchorlib.diagnosis.pairing import Place

__all__ = ["frame", "html", "lines"]

SHOWN = 3
ROWS = 10
HEADS = ("origin", "where", "class", "error", "operations", "parents", "why")
PAIR = ("order", "order_b", "equal", "digest_a", "digest_b", "role", "score")
PLACE = ("step", "pass_index", "call", "rank", "phase", "name", "kind")


def lines(found: Comparison) -> str:
    """The verdict and its sentence; under it the first difference and the first origins."""
    told = [f"Comparison({found.a!r}, {found.b!r}, {found.verdict}: {escape(found.sentence)})"]
    told += _first(found)
    for origin in found.origins[:SHOWN]:
        parts = [origin.cls, _error(origin), escape(" ".join(origin.ops[:SHOWN]))]
        about = ", ".join(filter(None, parts))
        told.append(f"origin: {_selector(origin.place)} at {_where(origin.place)}: {about}")
    if len(found.origins) > SHOWN:
        told.append(f"and {len(found.origins) - SHOWN:,} more in .origins")
    return "\n  ".join(told)


def html(found: Comparison) -> str:
    """The same with the origins as a table, and what could not be told."""
    head, *first = [
        f"Comparison of {found.a} and {found.b}: {found.verdict}", found.sentence, *_first(found)
    ]  # fmt: skip
    parts = [f"<p><b>{html_text(head)}</b></p>", *(f"<p>{html_text(one)}</p>" for one in first)]
    if found.origins:
        parts.append(html_table(HEADS, [_row(origin) for origin in found.origins[:ROWS]]))
    if len(found.origins) > ROWS:
        parts.append(f"<p>and {len(found.origins) - ROWS:,} more in .origins</p>")
    parts += [f"<p>note: {html_text(one)}</p>" for one in found.notes[:ROWS]]
    if len(found.notes) > ROWS:
        parts.append(f"<p>and {len(found.notes) - ROWS:,} more in .notes</p>")
    return "<div>\n{}\n</div>".format("\n".join(parts))


def frame(found: Comparison) -> pd.DataFrame:
    """One row a matched pair, in A's order; a pair that is equal has no measures (NaN)."""
    columns: dict[str, list[Any]] = {name: [] for name in (*PLACE, *PAIR, *Measure._fields)}
    for part in found.columns():
        for name, column in columns.items():
            missing = float("nan") if name in Measure._fields and name != "measured" else None
            column += [missing if value is None else value for value in part[name]]
    return as_frame(columns)


def _first(found: Comparison) -> list[str]:
    if found.first is None:
        return []
    place, before = found.first.place, found.first.identical_before
    same = f"{before:,} record{'' if before == 1 else 's'} before it identical"
    return [f"first: {_selector(place)} at {_where(place)}, {same}"]


def _row(origin: Origin) -> tuple[str, ...]:
    return (
        join(origin.place.name, origin.place.kind),
        _where(origin.place),
        origin.cls,
        _error(origin),
        _few(origin.ops, " "),
        _few(origin.parents, ", "),
        origin.why,
    )


def _few(texts: Sequence[str], between: str) -> str:
    """The first of them, and how many there are besides."""
    more = f" and {len(texts) - SHOWN:,} more" if len(texts) > SHOWN else ""
    return f"{between.join(texts[:SHOWN])}{more}"


def _error(origin: Origin) -> str:
    error = origin.measure.error_eps
    return "" if math.isnan(error) else f"{error:.3g} eps"


def _selector(place: Place) -> str:
    return escape(join(place.name, place.kind))


def _where(place: Place) -> str:
    parts = [f"step {place.step}, pass {place.pass_index}"]
    parts += [f"call {place.call}"] if place.call else []
    parts += [f"rank {place.rank}"] if place.rank else []
    parts += [f"phase {escape(place.phase)}"] if place.phase != "train" else []
    return ", ".join(parts)
