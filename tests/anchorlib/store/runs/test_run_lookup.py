"""Which run a text means, and what is said where it means none."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from anchorlib.errors import OptionError, RunNotFoundError
from anchorlib.store import LocalLocation, find_run, list_runs, locate_store
from anchorlib.wire import parse_address
from tests.anchorlib.store.records import floats, record, written


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for run in ("run1", "run2", "other.v2"):
        written(tmp_path, [record("x", 0, floats(1))], run=run)
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "folder").mkdir()
    (tmp_path / "image.zarr").mkdir()
    return tmp_path


def test_runs_are_listed_by_name(store: Path) -> None:
    assert list_runs(locate_store(store)) == ["other.v2", "run1", "run2"]


def test_runs_whose_name_older_versions_let_begin_with_a_dash_are_read(store: Path) -> None:
    (store / "run2.zarr").rename(store / "-x.zarr")
    assert list_runs(locate_store(store)) == ["-x", "other.v2", "run1"]
    assert find_run("-x", store).name == "-x"
    assert find_run(store / "-x.zarr").name == "-x"
    assert parse_address("grpc://127.0.0.1/-x").run == "-x"


def test_the_location_of_a_run_goes_to_another_process(store: Path) -> None:
    found = find_run("run1", store).location
    copied = pickle.loads(pickle.dumps(found))
    assert type(copied) is type(found)
    assert copied.get("zarr.json") == found.get("zarr.json") is not None


def test_a_run_is_found_by_name_and_by_path(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_run("run1", store).name == "run1"
    assert find_run("run1", str(store)).name == "run1"
    assert find_run(store / "run1.zarr").name == "run1"
    assert find_run(f"{store}/run1.zarr/").name == "run1"
    assert find_run(f"{store}/other.v2").name == "other.v2"
    monkeypatch.chdir(store)
    assert find_run("run2.zarr").name == "run2"
    monkeypatch.chdir(store / "run2.zarr")
    assert find_run(".").name == "run2"


def test_the_store_comes_from_the_environment_where_none_is_given(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANCHOR_STORE", str(store))
    assert find_run("run1").name == "run1"
    monkeypatch.delenv("ANCHOR_STORE")
    monkeypatch.chdir(store)
    store.rename(store.parent / "anchors")
    monkeypatch.chdir(store.parent)
    assert find_run("run1").name == "run1"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("rnu1", "did you mean 'run1'"),
        ("nothing-like-it", "; `anchor runs` lists what it holds"),
        ("../run1.zarr", "is not there"),
        ("", "run"),
        (".hidden", "run"),
        ("x" * 100, "run"),
    ],
)
def test_an_unknown_run_is_one_line_that_helps(run: str, said: str, store: Path) -> None:
    with pytest.raises(RunNotFoundError) as refusal:
        find_run(run, store)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_directory_that_is_no_store_says_so(store: Path) -> None:
    for where, said in (("none", "no such directory"), ("notes.txt", "file")):
        with pytest.raises(RunNotFoundError, match=said):
            locate_store(store / where)
    with pytest.raises(RunNotFoundError, match="is a run"):
        locate_store(store / "run1.zarr")
    with pytest.raises(RunNotFoundError, match="holds no run"):
        find_run(store / "folder")
    with pytest.raises(RunNotFoundError, match="no run"):
        find_run("run1", store / "folder")


def test_an_address_of_another_kind_names_the_kinds_there_are(store: Path) -> None:
    for ask in (locate_store, find_run):
        with pytest.raises(OptionError, match="grpc://host:port"):
            ask("ftp://host/prefix")


def test_an_address_without_a_run_says_how_to_name_one() -> None:
    with pytest.raises(RunNotFoundError, match="/run1"):
        find_run("grpc://127.0.0.1:1")


def test_a_directory_with_ranks_of_other_things_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "x.zarr" / "rankings").mkdir(parents=True)
    with pytest.raises(RunNotFoundError):
        find_run("x", tmp_path)
    assert isinstance(locate_store(tmp_path), LocalLocation)
