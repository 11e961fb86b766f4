"""Reads the file of `anchor compare --map`: which name in run B a tensor of run A has."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from anchor_cli.files import by_suffix
from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["read_names"]


def read_names(place: str | None) -> dict[str, str]:
    """Returns a dict of tensor names: the name in run B, keyed by the name in run A.

    place: the path of the file. FILE.csv has a name of A and a name of B in each row (empty rows,
        and rows that start with #, are skipped); FILE.json has an object that maps names of A to
        names of B. For None, {} is returned.

    Raises OptionError for a file that cannot be read or parsed.
    """
    if place is None:
        return {}
    path = Path(place)
    parse = by_suffix(path, {".csv": _of_csv, ".json": _of_json}, "--map")
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"--map {escape(place)}: {_reason(error)}") from None


def _reason(error: OSError | ValueError | RecursionError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _of_csv(text: str) -> dict[str, str]:
    rows = [row for row in csv.reader(io.StringIO(text)) if row and not row[0].startswith("#")]
    odd = next((row for row in rows if len(row) != 2), None)
    if odd is not None:
        raise ValueError(f"give a name of A and one of B in each row, not {','.join(odd)!r}")
    return {a.strip(): b.strip() for a, b in rows}


def _of_json(text: str) -> dict[str, str]:
    names = json.loads(text)
    if not isinstance(names, Mapping) or not all(isinstance(b, str) for b in names.values()):
        raise ValueError('give one object of names, as {"encoder.fc1": "fc1"}')
    return dict(names)
