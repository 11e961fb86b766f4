"""Conversion of runs and series to pandas DataFrames and to xarray DataArrays and Datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from anchorlib.errors import AmbiguousTensorError, MissingExtraError
from anchorlib.names import join
from anchorlib.reading.lazy import Chunks, lazy_values
from anchorlib.reading.tables import as_frame
from anchorlib.record import TensorInfo

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from anchorlib.reading.readable import ReadableRun, ReadableSeries

__all__ = ["run_dataset", "run_frame", "series_array", "series_frame"]

COORDINATES = ("step", "pass_index", "call", "phase", "attempt", "order", "time_ns", "count")
SHARED = ("step", "pass_index", "call", "phase", "attempt")
"""Tensors whose records agree in all of these columns share a dimension of the dataset."""


def series_frame(series: ReadableSeries) -> pd.DataFrame:
    """Return a DataFrame with a row for each record and a column for each of `Series.columns`."""
    return as_frame(series.columns)


def run_frame(infos: Iterable[TensorInfo]) -> pd.DataFrame:
    """Return a DataFrame with a row for each TensorInfo and a column for each of its fields."""
    rows = list(infos)
    names = [field.name for field in fields(TensorInfo)]
    return as_frame({name: [getattr(info, name) for info in rows] for name in names})


def series_array(series: ReadableSeries, chunks: Chunks | None) -> xarray.DataArray:
    """Return all values of a series, with coordinates such as step along the dimension "record".

    The coordinates are step, pass_index, call, phase, attempt, order, time_ns and count.

    Raises what `Series.to_xarray` raises.

    chunks: None reads the values now; else they are a lazy dask array with chunks of these sizes.
    """
    module = _xarray()
    if chunks is None:
        values = series.values()
    else:
        reader, _, rows = series.stored
        values = lazy_values(reader, rows, series.form(), chunks)
    array: xarray.DataArray = module.DataArray(
        values,
        dims=("record", *(f"d{axis}" for axis in range(values.ndim - 1))),
        coords={name: ("record", series.columns[name]) for name in COORDINATES},
        name=join(series.name, series.kind),
        attrs={"mode": series.mode, "rank": series.rank},
    )
    return array


def run_dataset(run: ReadableRun, selectors: Sequence[str], rank: int | None) -> xarray.Dataset:
    """Return the values of one rank's tensors as a Dataset with a variable for each tensor.

    `Run.to_xarray` says how dimensions are named, and what is raised.

    selectors: which tensors; empty for all.
    rank: the rank's number; None only if a single rank has recorded.
    """
    module = _xarray()
    wanted = _one_rank(run, rank)
    infos = [info for info in run.tensors(*selectors) if wanted in info.ranks]
    titles = _titles(infos)
    groups: dict[tuple[Any, ...], str] = {}
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for info, title in zip(infos, titles, strict=True):
        series = run.series(info.name, info.kind, rank=wanted, mode=info.mode)
        values, columns = series.values(), series.columns
        place = {name: columns[name] for name in SHARED}
        key = tuple(tuple(column.tolist()) for column in place.values())
        if key not in groups:
            suffix = f"_{len(groups)}" if groups else ""
            groups[key] = f"record{suffix}"
            coordinates |= {f"{name}{suffix}": (groups[key], one) for name, one in place.items()}
        dims = (groups[key], *(f"{title} d{axis}" for axis in range(values.ndim - 1)))
        attributes = {"name": info.name, "kind": info.kind, "mode": info.mode, "dtype": info.dtype}
        variables[title] = (dims, values, attributes)
    about: Mapping[str, Any] = {"run": run.name, "rank": wanted}
    dataset: xarray.Dataset = module.Dataset(variables, coords=coordinates, attrs=dict(about))
    return dataset


def _one_rank(run: ReadableRun, rank: int | None) -> int:
    ranks = run.ranks
    if rank is not None:
        run.rows(rank)  # raises OptionError where there is no such rank
        return rank
    if len(ranks) == 1:
        return ranks[0]
    raise AmbiguousTensorError(
        f"{run.name} has {len(ranks)} ranks, a Dataset holds one: give rank=, one of "
        f"{', '.join(map(str, ranks[:20]))}"
    )


def _titles(infos: Sequence[TensorInfo]) -> list[str]:
    """Return a variable name for each of `infos`, such as `fc1@grad`.

    Where a tensor and kind was recorded in several modes, the names end with the mode in
    parentheses.
    """
    plain = [join(info.name, info.kind) for info in infos]
    return [
        title if plain.count(title) == 1 else f"{title} ({info.mode})"
        for info, title in zip(infos, plain, strict=True)
    ]


def _xarray() -> Any:
    try:
        import xarray
    except ImportError as error:
        raise MissingExtraError(
            "to_xarray needs xarray: pip install 'anchorlib[xarray]'"
        ) from error
    return xarray
