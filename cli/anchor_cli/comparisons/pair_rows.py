"""The matched records of two runs as CSV and JSON lines, a row each, in A's order of execution.

The records are read and written in columns of some thousand rows: a million records take little
memory, and a few microseconds each.
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
    """Writes coordinates, digests and distances; equal pairs have no distances (empty cells)."""
    writer = sheet(file)
    writer.writerow(_COLUMNS)
    for part in comparison.columns():
        writer.writerows(zip(*(_mapped(part[name], _cell) for name in _COLUMNS), strict=True))


def write_jsonl(comparison: Comparison, file: IO[str]) -> None:
    """Writes a line for each pair, then a line of `type` summary with the document of --json."""
    summary = comparison.to_dict()
    head = {"schema_version": summary["schema_version"]}
    begin = json.dumps({**head, "type": "pair"}).removesuffix("}").replace("%", "%%")
    line = "".join([begin, *(f', "{name}": %s' for name in _COLUMNS), "}\n"])
    for part in comparison.columns():
        file.writelines(map(line.__mod__, zip(*_texts(part), strict=True)))
    end = {**head, "type": "summary", **summary}
    file.write(f"{json.dumps(plain(end), allow_nan=False)}\n")


def _texts(part: dict[str, list[Any]]) -> Iterator[Sequence[str]]:
    """The columns, each value as JSON text."""
    for name in _COLUMNS:
        yield _mapped(part[name], json.dumps if name in _TEXTS else _json)


def _mapped(values: Sequence[Any], into: Callable[[Any], Any]) -> list[Any]:
    """`into` of each value; texts repeat, so `into` is called once for each different text."""
    if not isinstance(values[0], str):
        return [into(value) for value in values]
    known = {value: into(value) for value in set(values)}
    return [known[value] for value in values]


def _json(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "null"
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _cell(value: Any) -> Any:
    """The value as a CSV cell that spreadsheets and dataframes read."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return harmless(value)
