"""Writes the matched records of two runs as CSV or JSON lines: `anchor compare --csv`, `--jsonl`.

There is a row for each pair, in run A's order of execution. Pairs are read and written as columns
of some thousand rows: a million pairs take little memory, and a few microseconds each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from anchor_cli.records import harmless, sheet
from anchor_cli.terminal import plain

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison

__all__ = ["write_csv", "write_jsonl"]

_TEXTS = ("phase", "name", "kind", "digest_a", "digest_b", "role", "measured")
_COLUMNS = (
    *("step", "pass_index", "call", "rank", "phase", "name", "kind"),
    *("order", "order_b", "digest_a", "digest_b", "equal", "role", "score"),
    *("error_eps", "share_differing", "max_abs", "max_eps", "bias", "cosine_distance", "eps"),
    *("norm", "nonfinite", "zeros", "numel", "worst", "value_a", "value_b", "measured"),
)


def write_csv(comparison: Comparison, file: IO[str]) -> None:
    """Writes a CSV row for each pair of matching records: coordinates, digests and distances.

    Pairs that are equal have empty cells in place of distances.
    """
    writer = sheet(file)
    writer.writerow(_COLUMNS)
    for part in comparison.columns():
        writer.writerows(zip(*(_mapped(part[name], _cell) for name in _COLUMNS), strict=True))


def write_jsonl(comparison: Comparison, file: IO[str]) -> None:
    """Writes a JSON line for each pair of matching records of the runs, then a summary line.

    The last line has the `type` "summary", and what `--json` would print.
    """
    summary = comparison.to_dict()
    head = {"schema_version": summary["schema_version"]}
    begin = json.dumps({**head, "type": "pair"}).removesuffix("}").replace("%", "%%")
    line = "".join([begin, *(f', "{name}": %s' for name in _COLUMNS), "}\n"])
    for part in comparison.columns():
        file.writelines(map(line.__mod__, zip(*_texts(part), strict=True)))
    end = {**head, "type": "summary", **summary}
    file.write(f"{json.dumps(plain(end), allow_nan=False)}\n")


def _texts(part: dict[str, list[Any]]) -> Iterator[Sequence[str]]:
    """Yields the columns of some pairs, in the order of _COLUMNS, with each value as JSON text."""
    for name in _COLUMNS:
        yield _mapped(part[name], json.dumps if name in _TEXTS else _json)


def _mapped(values: Sequence[Any], into: Callable[[Any], Any]) -> list[Any]:
    """Applies `into` to each value of a column and returns the results.

    Strings repeat a lot: for them `into` is called only once for each distinct value.

    values: the column, at least one value, either all strings or none.
    """
    if not isinstance(values[0], str):
        return [into(value) for value in values]
    known = {value: into(value) for value in set(values)}
    return [known[value] for value in values]


def _json(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "null"
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _cell(value: Any) -> Any:
    """Returns a value as a CSV cell that spreadsheets and DataFrames read; "" for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return harmless(value)
