"""The file formats of `anchor pull`: each writes an Extract (records of one tensor) into a file.

PLACE is step, pass_index, call, rank, phase, count and attempt, one entry for each record.

    .npz          value (or value_0, value_1 … when ragged), and PLACE
    .npy          the values alone
    .csv          one row for each element: PLACE, i0, i1 …, value
    .pt           a dict of torch tensors with npz's names, in the dtype that was recorded;
                  `phase` is a list of texts
    .safetensors  the same tensors; the format holds no text, so `phase` is a tensor of indices
                  into the JSON list `anchor.phases` of the metadata
    .parquet      one row for each record: PLACE, shape, and the values as a list

npz, npy, csv and parquet hold bfloat16 and fp8 as float32, exactly.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import IO, Any

import numpy as np

from anchor_cli.records.extract import PLACE, Extract
from anchor_cli.records.sheets import write_rows
from anchorlib.errors import MissingExtraError, UnsupportedError

__all__ = ["WRITERS", "csv_rows", "write_csv"]


def _write_npz(extract: Extract, file: IO[bytes]) -> None:
    arrays: dict[str, Any] = {**extract.named(), **extract.place}
    np.savez(file, **arrays)


def _write_npy(extract: Extract, file: IO[bytes]) -> None:
    np.save(_Plain(file), extract.stacked(), allow_pickle=False)


class _Plain:
    """A wrapper that hides a file's descriptor, so that numpy writes by the method `write`.

    The error of Python's `write` says why a write failed (a full disk); the error that numpy raises
    when it writes to a descriptor does not.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def write_csv(extract: Extract, file: IO[bytes]) -> None:
    """Writes the records as CSV in UTF-8.

    file: open for writing in binary mode.
    """
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    write_rows(text, csv_rows(extract))
    text.flush()
    text.detach()


def csv_rows(extract: Extract) -> Iterator[list[str]]:
    """Yields the rows of the CSV: the head, then a row for each element of each record.

    The columns are those of PLACE, the element's indices (a column i0, i1 and so on for each axis;
    empty where a record has fewer axes than another), and the value: the shortest text that reads
    back exactly.
    """
    ndim = max((len(record.shape) for record in extract.records), default=0)
    yield [*PLACE, *(f"i{axis}" for axis in range(ndim)), "value"]
    for number, record in enumerate(extract.records):
        place = [str(extract.place[name][number]) for name in PLACE]
        unused = [""] * (ndim - len(record.shape))
        for index, value in zip(np.ndindex(record.shape), record.array.ravel(), strict=True):
            yield [*place, *map(str, index), *unused, str(value)]


def _write_pt(extract: Extract, file: IO[bytes]) -> None:
    phases = extract.place["phase"].tolist()
    # Saved to memory first: where a disk is full, only Python's own write says so.
    whole = io.BytesIO()
    import_module("torch").save({**_tensors(extract), "phase": phases}, whole)
    file.write(whole.getbuffer())


def _write_safetensors(extract: Extract, file: IO[bytes]) -> None:
    safetensors = _extra("safetensors.torch", "safetensors")
    phases, codes = np.unique(extract.place["phase"], return_inverse=True)
    about = {**_about(extract), "anchor.phases": json.dumps(phases.tolist())}
    tensors = {**_tensors(extract), "phase": import_module("torch").from_numpy(codes)}
    try:
        file.write(safetensors.save(tensors, metadata=about))
    except (KeyError, ValueError, import_module("safetensors").SafetensorError) as error:
        raise UnsupportedError(
            f"safetensors cannot hold {', '.join(extract.dtypes)} ({error}); write .pt or .npz"
        ) from None


def _tensors(extract: Extract) -> dict[str, Any]:
    """Returns the arrays of the npz format as torch tensors, keyed by name, without `phase`.

    The values have the dtypes in which they were recorded.
    """
    # Imported by name: the command line does not depend on torch; only two formats need it.
    torch = import_module("torch")
    values = extract.named(raw=True)
    dtypes = [record.dtype for record in extract.records]
    tensors = {
        name: torch.from_numpy(np.require(raw, requirements=["C", "W"])).view(getattr(torch, dtype))
        for (name, raw), dtype in zip(values.items(), dtypes, strict=False)
    }
    return tensors | {name: torch.from_numpy(column) for name, column in extract.numbers.items()}


def _write_parquet(extract: Extract, file: IO[bytes]) -> None:
    pyarrow = _extra("pyarrow", "parquet")
    parquet = _extra("pyarrow.parquet", "parquet")
    arrays = [record.array for record in extract.records]
    common = np.result_type(*{array.dtype for array in arrays})
    if common.kind == "c":
        raise UnsupportedError("parquet has no complex numbers; write .npz or .pt")
    values = [array.astype(common, copy=False).ravel() for array in arrays]
    shapes = [list(array.shape) for array in arrays]
    element = pyarrow.from_numpy_dtype(common)
    columns = {
        **extract.place,
        "shape": pyarrow.array(shapes, pyarrow.list_(pyarrow.int64())),
        "value": pyarrow.array(values, pyarrow.list_(element)),
    }
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(_about(extract)), file)


def _about(extract: Extract) -> Mapping[str, str]:
    return {
        "anchor.name": extract.name,
        "anchor.kind": extract.kind,
        "anchor.dtype": ",".join(extract.dtypes),
    }


def _extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(
            f".{extra} files need {module.partition('.')[0]}: pip install 'anchorlib[{extra}]', "
            "or write .npz"
        ) from None


WRITERS: Mapping[str, Callable[[Extract, IO[bytes]], None]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".csv": write_csv,
    ".pt": _write_pt,
    ".safetensors": _write_safetensors,
    ".parquet": _write_parquet,
}
"""For each suffix of the output file the function that writes it."""
