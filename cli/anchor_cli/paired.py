"""The matched records of two runs, one row each in A's order of execution: CSV and JSON lines.

Pairs come as a stream and leave as one: a million of them take no memory.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from anchor_cli.terminal import plain

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Pair

__all__ = ["write_csv", "write_jsonl"]

_PLACE = ("step", "pass_index", "call", "rank", "phase", "name", "kind")
_PAIR = ("order", "order_b", "digest_a", "digest_b", "equal", "role", "score")
_MEASURE = (
    *("error_eps", "share_differing", "max_abs", "max_eps", "bias", "cosine_distance", "eps"),
    *("norm", "nonfinite", "zeros", "numel", "worst", "value_a", "value_b", "measured"),
)


def write_csv(found: Comparison, file: IO[str]) -> None:
    """Coordinates, digests, and how far apart; equal pairs were not measured: blank."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*_PLACE, *_PAIR, *_MEASURE])
    for pair in found.pairs():
        writer.writerow(map(_cell, _row(pair).values()))


def write_jsonl(found: Comparison, file: IO[str]) -> None:
    """A record a pair, then one of `type` summary that holds what --json says."""
    for one in _documents(found):
        file.write(f"{json.dumps(plain(one), allow_nan=False)}\n")


def _documents(found: Comparison) -> Iterator[dict[str, Any]]:
    summary = found.to_dict()
    head = {"schema_version": summary["schema_version"]}
    for pair in found.pairs():
        yield {**head, "type": "pair", **_row(pair)}
    yield {**head, "type": "summary", **summary}


def _row(pair: Pair) -> dict[str, Any]:
    return {
        **{name: getattr(pair.place, name) for name in _PLACE},
        **{name: getattr(pair, name) for name in _PAIR},
        **{name: getattr(pair.measure, name, None) for name in _MEASURE},
    }


def _cell(value: Any) -> Any:
    """As spreadsheets and dataframes read it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
