"""`anchor archive`, and reading what it has put away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from anchor_server import serve
from anchorlib.store import Writer
from tests.anchorlib.reading.runs import make_run
from tests.anchorlib.store.read.test_joined import write
from tests.bucket import Line, object_store
from tests.cli.made import anchor

S3 = "s3://anchors/of/us"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with object_store(monkeypatch) as line:
        yield line


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_run(tmp_path / "store")


@pytest.mark.slow
def test_a_run_that_was_archived_is_read_wherever_it_is(store: Path, line: Line) -> None:
    before = {
        words: anchor(*words, "--store", store, "--json").out
        for words in (
            ("names", "run1"),
            ("hist", "run1", "-t", "fc2"),
            ("stats", "run1", "-t", "fc1"),
        )
    }
    planned = anchor("archive", "run1", "--to", S3, "--dry-run", "--store", store, "--json").json
    assert (planned["ranks"], planned["there"], planned["dry_run"]) == ([0], [], True)
    done = anchor("archive", "run1", "--to", S3, "--keep-local", "none", "--store", store)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].startswith(f"run1: 1 rank in {S3}, ")
    assert done.out.splitlines()[1].startswith("run1: removed here, ")
    assert not (store / "run1.zarr").exists()
    for place in (store, S3):
        for words, out in before.items():
            assert anchor(*words, "--store", place, "--json").out == out
        assert anchor("verify", "run1", "--store", place).code == 0
        (one,) = anchor("runs", "--store", place, "--json").json
        assert (one["name"], one["state"], one["ranks"], one["steps"]) == ("run1", "closed", [0], 3)
    (one,) = anchor("runs", "--store", store, "--json").json
    assert one["archive"] == S3
    assert S3 in anchor("runs", "--store", store).out
    refused = anchor("mv", "run1", "run2", "--store", store)
    assert (refused.code, refused.out) == (2, "")
    assert "in its archive alone, s3://anchors/of/us" in refused.err


def test_the_command_repeated_sends_nothing(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    first = anchor("archive", "run1", "--to", to, "--store", store, "--json").json
    again = anchor("archive", "run1", "--to", to, "--store", store, "--json").json
    assert first["sent"] > 0 == again["sent"]
    assert {**first, "sent": 0} == again
    assert anchor("archive", "run1", "--to", to, "--dry-run", "--store", store).out.startswith(
        "run1: 0 ranks would be sent, 1 are there"
    )
    gone = ("archive", "run1", "--to", to, "--keep-local", "none", "--store", store)
    assert "removed here" in anchor(*gone).out
    assert anchor(*gone).out == f"run1: in {to} alone; there is nothing to send\n"
    assert anchor(*gone, "--json").json["sent"] == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("none", "--to", S3), 2, "no run 'none'"),
        (("run1", "--to", ""), 2, "it is empty"),
        (("run1", "--to", "ftp://host/x"), 2, "ftp://host/x is no archive"),
        (("run1", "--to", "s3://key:secret@bucket/x"), 2, "holds no credentials"),
        (("run1", "--to", S3, "--keep-local", "some"), 2, "write all, none, a size as 500GB"),
        (("run1", "--to", S3, "--keep-local", "5"), 2, "write all, none, a size as 500GB"),
        (("run1", "--to", "s3://nowhere/x"), 4, "there is no bucket nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(
    store: Path, line: Line, words: tuple[str, ...], code: int, said: str
) -> None:
    done = anchor("archive", *words, "--store", store)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert "secret" not in done.err


def test_push_leaves_archives_to_archive(store: Path) -> None:
    done = anchor("push", "run1", "--to", S3, "--store", store)
    assert (done.code, done.out) == (2, "")
    assert "use `anchor archive RUN --to URL`" in done.err


@pytest.mark.slow
def test_a_store_in_trouble_ends_with_4(store: Path, line: Line) -> None:
    assert anchor("archive", "run1", "--to", S3, "--store", store).code == 0
    line.trouble = lambda method, path: "503"
    for words in (
        ("archive", "run1", "--to", S3, "--store", store),
        ("names", "run1", "--store", S3),
    ):
        done = anchor(*words)
        assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
        assert "HTTP 503; try again later" in done.err
        assert "AKIA" not in done.err


@pytest.mark.slow
def test_an_archive_that_is_away_leaves_the_other_runs_of_a_directory(
    store: Path, line: Line
) -> None:
    shutil.copytree(store / "run1.zarr", store / "run2.zarr")
    gone = anchor("archive", "run1", "--to", S3, "--keep-local", "none", "--store", store)
    assert gone.code == 0
    line.trouble = lambda method, path: "503"
    runs = anchor("runs", "--store", store, "--json")
    assert (runs.code, [one["name"] for one in runs.json]) == (3, ["run2"])
    assert runs.err.startswith("anchor: run1 cannot be read: cannot list s3://")
    assert runs.err.count("\n") == 1
    collected = anchor("gc", "--keep-last", "1", "--store", store, "--json")
    assert (collected.code, collected.err, collected.json["kept"]) == (0, "", ["run2"])
    assert anchor("runs", "--store", S3).code == 4


@pytest.mark.slow
def test_a_store_without_conditions_is_used_only_when_told(store: Path, line: Line) -> None:
    line.trouble = lambda method, path: "blind"
    words = ("archive", "run1", "--to", S3, "--store", store)
    refused = anchor(*words)
    assert (refused.code, refused.out) == (2, "")
    assert "--without-conditional-writes" in refused.err
    assert anchor(*words, "--without-conditional-writes").code == 0


def test_a_run_that_is_written_or_was_never_closed_is_refused(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    with Writer.open(store, "run1", 0, resume=True):
        done = anchor("archive", "run1", "--to", to, "--store", store)
        assert (done.code, done.out) == (2, "")
        assert "being written by a living process" in done.err


def test_status_of_a_directory_says_what_is_archived(store: Path, tmp_path: Path) -> None:
    anchor("archive", "run1", "--to", tmp_path / "archive", "--store", store)
    done = anchor("status", "--store", store)
    assert f"1 run is archived in {tmp_path}/archive, 1 of them is here too" in done.err
    assert json.loads(anchor("status", "--store", store, "--json").out) == []


def test_gc_passes_over_what_is_in_its_archive_alone(store: Path, tmp_path: Path) -> None:
    make_run(store, "run2")
    to = tmp_path / "archive"
    anchor("archive", "run1", "--to", to, "--keep-local", "none", "--store", store)
    found = anchor("gc", "--keep-last", "0", "--store", store)
    assert found.code == 0, found.err
    assert not (store / "run2.zarr").exists()
    assert anchor("names", "run1", "--store", store).code == 0


@pytest.mark.slow
def test_a_run_that_is_in_its_archive_alone_is_forgotten_and_stays_there(
    store: Path, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    before = anchor("names", "run1", "--store", store, "--json").out
    anchor("archive", "run1", "--to", to, "--keep-local", "none", "--store", store)
    with serve(store) as collector:
        one = f"grpc://{collector.address}"
        assert [run["archive"] for run in anchor("runs", "--store", one, "--json").json] == [
            str(to)
        ]
        gone = anchor("rm", "run1", "--store", one)
        assert (gone.code, gone.out) == (0, "run1: forgotten; its archive keeps it\n")
        assert anchor("names", "run1", "--store", one).code == 2
    assert anchor("names", "run1", "--store", to, "--json").out == before
    make_run(store)
    anchor("archive", "run1", "--to", tmp_path / "other", "--keep-local", "none", "--store", store)
    shutil.rmtree(tmp_path / "other")  # which no longer keeps a run from being forgotten
    gone = anchor("rm", "run1", "--store", store)
    assert gone.out.startswith("run1: forgotten here; its objects stay in ")
    assert anchor("rm", "run1", "--store", store).code == 2


def test_an_archive_that_has_moved_is_found_in_its_new_place(store: Path, tmp_path: Path) -> None:
    to, moved = tmp_path / "archive", tmp_path / "moved"
    before = anchor("names", "run1", "--store", store, "--json").out
    anchor("archive", "run1", "--to", to, "--keep-local", "none", "--store", store)
    again = ("archive", "run1", "--to", moved, "--store", store)
    refused = anchor(*again)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "has no rank 0 of run 'run1' that is whole: copy the archive there" in refused.err
    to.rename(moved)
    assert anchor("names", "run1", "--store", store).code != 0
    path = next(one for one in moved.rglob("value/c/**/*") if one.is_file())
    sound = path.read_bytes()
    path.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    assert "does not fit its SHA-256" in anchor(*again).err
    path.write_bytes(sound)
    assert anchor(*again).out == f"run1: read in {moved}, and found there from now on\n"
    assert anchor("names", "run1", "--store", store, "--json").out == before
    make_run(tmp_path / "third")
    anchor("archive", "run1", "--to", tmp_path / "fourth", "--store", tmp_path / "third")
    other = anchor("archive", "run1", "--to", tmp_path / "fourth", "--store", store)
    assert "another recording of rank 0" in other.err


def test_what_became_of_closed_runs_is_listed(store: Path, tmp_path: Path) -> None:
    assert "no run of" in anchor("status", "--archives", "--store", store).err
    to = tmp_path / "archive"
    anchor("archive", "run1", "--to", to, "--keep-local", "none", "--store", store)
    told = anchor("status", "--archives", "--store", store, "--json").json
    assert told == [
        {
            "store": str(store),
            "to": str(to),
            "archived": 1,
            "alone": ["run1"],
            "bytes": None,
            "waiting": None,
            "failing": {},
            "problem": None,
        }
    ]
    assert f"1 run is archived in {to}" in anchor("status", "--archives", "--store", store).out


@pytest.mark.slow
def test_a_run_of_several_collectors_goes_from_all_of_them(tmp_path: Path) -> None:
    stores = [tmp_path / "a", tmp_path / "b"]
    write(stores[0], 0, 0, 30)
    write(stores[1], 1, 20, 50, closes=True)
    with serve(stores[0]) as one, serve(stores[1]) as other:
        several = f"grpc://{one.address},{other.address}"
        words = ("archive", "run1", "--to", tmp_path / "archive", "--store", several)
        planned = anchor(*words, "--dry-run", "--json").json
        assert (planned["ranks"], planned["there"]) == ([0], [])
        refused = anchor(*words, "--keep-local", "none")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        done = anchor(*words, "--json").json
        assert done["sent"] == done["objects"] - 2
        assert anchor(*words, "--dry-run", "--json").json["there"] == [0]
        for question in (("names", "run1"), ("hist", "run1", "-t", "*"), ("verify", "run1")):
            there = anchor(*question, "--store", tmp_path / "archive", "--json")
            assert there.code == 0
            assert there.out == anchor(*question, "--store", several, "--json").out
