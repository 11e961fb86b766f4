"""Every Location keeps the same promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray

from anchor_server import serve
from anchorlib.errors import CollectorError, RunNotFoundError
from anchorlib.reading import open_run
from anchorlib.store import (
    CollectorLocation,
    LocalLocation,
    Location,
    Within,
    as_zarr,
    find_run,
    locate_store,
)
from tests.anchorlib.reading.runs import make_run
from tests.anchorlib.store.locations import LocationPromises, fill


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Location]]:
    root = tmp_path_factory.mktemp("outer") / "store"
    fill(root)
    with serve(root, bind="127.0.0.1:0") as collector:
        yield root, locate_store(f"grpc://{collector.address}")


class OverADirectory(LocationPromises):
    """The directory, new for each test."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        fill(tmp_path / "outer" / "store")
        return tmp_path / "outer" / "store"


class TestLocal(OverADirectory):
    @pytest.fixture
    def location(self, root: Path) -> Location:
        return LocalLocation(root)


class TestWithin(OverADirectory):
    @pytest.fixture
    def location(self, root: Path) -> Location:
        return Within(LocalLocation(root.parent), "store")


class TestClient(OverADirectory):
    """A collector's client answers with the same two verbs."""

    @pytest.fixture
    def location(self, root: Path) -> Location:
        return CollectorLocation(LocalLocation(root))


class TestCollector(LocationPromises):
    """And over gRPC, from a collector that serves the directory."""

    @pytest.fixture
    def root(self, served: tuple[Path, Location]) -> Path:
        return served[0]

    @pytest.fixture
    def location(self, served: tuple[Path, Location]) -> Location:
        return served[1]


@pytest.mark.slow
def test_a_run_reads_the_same_through_a_collector(tmp_path: Path) -> None:
    make_run(tmp_path, ranks=2)
    here = open_run("run1", store=tmp_path)
    with serve(tmp_path, bind="127.0.0.1:0") as collector:
        address = f"grpc://{collector.address}"
        for there in (open_run("run1", store=address), open_run(f"{address}/run1")):
            assert there.tensors() == here.tensors()
            for rank in here.ranks:
                one, two = (run.series("fc2", "grad", rank=rank) for run in (here, there))
                assert two.values().tobytes() == one.values().tobytes()
                assert two.columns["digest"].tolist() == one.columns["digest"].tolist()
            assert there.histogram("*") == here.histogram("*")
        with pytest.raises(RunNotFoundError, match="did you mean 'run1'"):
            open_run(f"{address}/run2")
        store = as_zarr(find_run("run1", address).location)
        series = here.series("fc2", rank=0)
        shape = "x".join(map(str, series.shapes[0]))
        group = f"rank0/forms/float32_{shape}"
        data = xarray.open_zarr(store, group=group, consolidated=False)
        wanted = {"name": "fc2", "kind": "value", "mode": "all"}
        told = data.attrs["anchor"]["series"].items()
        (number,) = (int(number) for number, one in told if one == wanted)
        mine = np.flatnonzero(data["series"].values == number)
        assert data["value"].values[mine].tobytes() == series.values().tobytes()
        assert data["step"].values[mine].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_collector_that_is_not_there_is_said_so() -> None:
    with pytest.raises(CollectorError, match="anchor serve"):
        open_run("grpc://127.0.0.1:1/run1")
