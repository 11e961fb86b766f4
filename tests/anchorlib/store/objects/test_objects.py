"""Runs in an object store are read by every reader; whatever it does, no answer is wrong."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore, ObjectStore

from anchorlib.archive import checked_shelf
from anchorlib.errors import (
    AnchorError,
    CollectorError,
    MissingExtraError,
    OptionError,
    RunNotFoundError,
)
from anchorlib.reading import open_run
from anchorlib.sinks import check_collector, push
from anchorlib.store import Location, list_runs, locate_store
from anchorlib.store.objects import (
    FolderShelf,
    ObjectShelf,
    Shelf,
    connection,
    object_location,
    parse_object_url,
    shelf_at,
)
from tests.anchorlib.reading.runs import make_run
from tests.bucket import HASTY, Line, object_store

PLACE = "s3://anchors/of/us"
FILES = {
    "top": b"0123456789",
    "empty": b"",
    "run1.zarr/zarr.json": b"{}",
    "run1.zarr/rank0/c.0": bytes(range(256)) * 40,
    "run1.zarr/rank1/100%25-_.a": b"odd name",
}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with object_store(monkeypatch) as line:
        yield line


@pytest.fixture
def filled(line: Line) -> Location:
    shelf = shelf_at(PLACE)
    for key, data in FILES.items():
        shelf.put(key, data)
    line.asked.clear()
    return shelf.location


def upload(root: Path, place: str = PLACE) -> None:
    """Every file of a directory, as it is."""
    shelf = shelf_at(place)
    for path in sorted(root.rglob("*")):
        key = path.relative_to(root).as_posix()
        if path.is_file() and not key.startswith("."):
            shelf.put(key, path.read_bytes())


@pytest.mark.slow
def test_an_object_is_read_as_a_file_is(filled: Location) -> None:
    for key, data in FILES.items():
        assert filled.get(key) == data
    for start, length in ((0, 3), (3, None), (4, 2), (9, 5), (0, 0), (10, None), (50, 5), (10, 0)):
        end = None if length is None else start + length
        assert filled.get("top", start, length) == FILES["top"][start:end]
    assert filled.get("empty", 0, 9) == b""
    assert filled.get("top", 2, (1 << 63) - 1) == b"23456789"
    for key in ("none", "run1.zarr", "top/below", "x" * 300):
        assert (filled.get(key), filled.get(key, 3, 5), filled.get(key, 0, 0)) == (None,) * 3


def test_a_prefix_is_listed_as_a_folder_is(filled: Location) -> None:
    assert filled.list("") == ["empty", "run1.zarr/", "top"]
    assert (
        filled.list("run1.zarr/") == filled.list("run1.zarr") == ["rank0/", "rank1/", "zarr.json"]
    )
    assert filled.list("run1.zarr/rank1") == ["100%25-_.a"]
    assert (filled.list("none"), filled.list("top")) == ([], [])


@pytest.mark.parametrize("key", ["../x", "a//b", "/etc", ".anchor/x", "a\0b"])
def test_a_key_that_leads_elsewhere_is_refused(filled: Location, key: str) -> None:
    for ask in (filled.get, filled.list):
        with pytest.raises(AnchorError):
            ask(key)


@pytest.mark.slow
def test_a_run_reads_the_same_from_an_object_store(line: Line, tmp_path: Path) -> None:
    make_run(tmp_path)
    upload(tmp_path)
    here = open_run("run1", store=tmp_path)
    assert list_runs(locate_store(PLACE)) == ["run1"]
    there = open_run("run1", store=PLACE)
    assert there.tensors() == here.tensors() == open_run(f"{PLACE}/run1.zarr/").tensors()
    one, two = (run.series("fc2", "grad", rank=0) for run in (here, there))
    assert two.values().tobytes() == one.values().tobytes()
    with pytest.raises(RunNotFoundError, match="did you mean 'run1'"):
        open_run(f"{PLACE}/run2")
    with pytest.raises(RunNotFoundError, match="no run 'run1' in s3://anchors/elsewhere"):
        open_run("s3://anchors/elsewhere/run1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble", ["503", pytest.param("stall", marks=pytest.mark.slow), "cut", "lost"]
)
def test_a_store_in_trouble_gives_one_line_and_no_wrong_answer(
    line: Line, filled: Location, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "stall":
        monkeypatch.setattr(connection, "DEFAULT", HASTY)
        filled = object_location(parse_object_url(PLACE))
    line.trouble = lambda method, path: trouble
    for ask in (lambda: filled.get("run1.zarr/rank0/c.0"), lambda: filled.get("top", 2, 3)):
        with pytest.raises(CollectorError) as caught:
            ask()
        assert str(caught.value).startswith(f"cannot read {PLACE}/")
        assert "\n" not in str(caught.value)
    with pytest.raises(CollectorError, match="cannot list"):
        filled.list("")
    assert len(line.asked) <= 12  # and asks no store to death


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["503", "cut", "lost"])
def test_trouble_that_passes_is_not_noticed(line: Line, filled: Location, trouble: str) -> None:
    left = [trouble]
    line.trouble = lambda method, path: left.pop() if left else None
    assert filled.get("run1.zarr/rank0/c.0") == FILES["run1.zarr/rank0/c.0"]


def test_what_is_not_there_is_said_as_such(
    line: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(CollectorError, match="there is no bucket nowhere"):
        open_run("s3://nowhere/run1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(CollectorError, match="nothing answers there"):
        open_run(f"{PLACE}/run1")


def test_plain_http_is_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example:9000")
    with pytest.raises(OptionError, match=r"AWS_ENDPOINT_URL=http://storage\.example:9000"):
        locate_store(PLACE)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://me:secret@storage.example")
    with pytest.raises(OptionError, match="user or password") as caught:
        locate_store(PLACE)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("AKIA:secret@minio:9000", "user or password"),
        ("http://minio:9000/?token=secret", "AWS_ENDPOINT_URL=http://minio:9000/:"),
        ("http://[bad", r"AWS_ENDPOINT_URL=http://\[bad is no URL"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_without_its_credentials(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, said: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(OptionError, match=said) as caught:
        locate_store(PLACE)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:secret@bucket/x",
        "https://me.blob/c?sig=secret",
        "https://me:secret?secret@host/x",
        "https://host/x?mail=me@secret",
    ],
)
@pytest.mark.parametrize("door", ["archive", "record", "push"])
def test_a_place_that_cannot_be_is_refused_without_its_credentials(url: str, door: str) -> None:
    doors: dict[str, Callable[[], object]] = {
        "archive": lambda: shelf_at(url),
        "record": lambda: check_collector(url),
        "push": lambda: push("run1", url, "anchors", patience=0, progress=lambda done, of: None),
    }
    with pytest.raises((OptionError, RunNotFoundError)) as caught:
        doors[door]()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///x", "s3://b/../c", "s3://b/.x", "s3://b//c", "s3://key:secret@b/x"]
)
def test_a_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_object_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_credentials_are_shown_nowhere(
    line: Line, filled: Location, caplog: pytest.LogCaptureFixture
) -> None:
    said = [repr(filled), repr(shelf_at(PLACE)), shelf_at(PLACE).place]
    with caplog.at_level(logging.DEBUG):
        for trouble in ("503", "cut", "lost"):
            line.trouble = lambda method, path, now=trouble: now
            with pytest.raises(CollectorError) as caught:
                filled.get("top")
            said.append(
                f"{caught.value!r} {caught.value.__cause__} {caught.value.__suppress_context__}"
            )
    whole = " ".join([*said, caplog.text])
    assert "a-secret-of-the-test" not in whole
    assert "AKIAOFTHETEST" not in whole


def test_without_obstore_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *args: object, **named: object) -> object:
        if name.startswith("obstore"):
            raise ImportError(name)
        return found(name, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'anchorlib\[s3\]'"):
        locate_store(PLACE)


class ShelfPromises:
    """What every place keeps in which objects are put."""

    def test_an_object_is_there_whole_and_as_it_was_put(self, shelf: Shelf) -> None:
        shelf.put("run1.zarr/a", b"one")
        shelf.put("run1.zarr/rank0/b", b"two")
        shelf.put("run1.zarr/a", b"three")
        held = shelf.held("run1.zarr")
        assert {key: one.size for key, one in held.items()} == {
            "run1.zarr/a": 5,
            "run1.zarr/rank0/b": 3,
        }
        assert shelf.location.get("run1.zarr/a") == b"three"
        assert shelf.is_same("run1.zarr/a", held["run1.zarr/a"], b"three")
        assert not shelf.is_same("run1.zarr/a", held["run1.zarr/a"], b"other")
        assert shelf.held("run2.zarr") == {}

    def test_what_is_created_replaces_nothing(self, shelf: Shelf) -> None:
        assert shelf.create("mark", b"mine")
        assert not shelf.create("mark", b"another's")
        assert shelf.create("mark", b"mine")  # as after an answer that was lost
        assert shelf.location.get("mark") == b"mine"

    def test_what_was_changed_meanwhile_is_not_replaced(self, shelf: Shelf) -> None:
        shelf.put("index", b"one")
        found = shelf.fetch("index")
        assert found is not None
        assert shelf.swap("index", b"two", found[1])
        assert not shelf.swap("index", b"three", found[1])
        assert shelf.fetch("index")[0] == b"two"
        shelf.remove("index")
        shelf.remove("index")
        assert shelf.fetch("index") is None
        assert not shelf.swap("index", b"four", found[1])

    def test_what_was_read_is_not_put_back_over_what_came_meanwhile(self, shelf: Shelf) -> None:
        shelf.put("index", b"one")
        found = shelf.fetch("index")
        assert found is not None
        shelf.put("index", b"two")
        assert not shelf.swap("index", b"one", found[1])
        assert shelf.location.get("index") == b"two"


class TestFolderShelf(ShelfPromises):
    @pytest.fixture
    def shelf(self, tmp_path: Path) -> Shelf:
        return FolderShelf(tmp_path / "archive")


class TestObjectShelf(ShelfPromises):
    @pytest.fixture
    def shelf(self, line: Line) -> Shelf:
        return shelf_at(PLACE)

    def test_a_lost_answer_is_no_refusal(self, line: Line, shelf: Shelf) -> None:
        left = ["lost"]
        line.trouble = lambda method, path: left.pop() if method == "PUT" and left else None
        assert shelf.create("mark", b"mine")
        assert [method for method, _ in line.asked if method == "PUT"] == ["PUT", "PUT"]


class TestGoogleShelf(ShelfPromises):
    @pytest.fixture
    def shelf(self, monkeypatch: pytest.MonkeyPatch) -> Shelf:
        """Of objects in memory, whose conditions name generations as Google's do."""
        get, put = obstore.get, obstore.put

        def as_google_gets(client: MemoryStore, key: str, **named: Any) -> object:
            got = get(client, key, **named)
            if named:  # by a reader, who wants no conditions
                return got
            meta = {**got.meta, "e_tag": "of-no-use", "version": got.meta["e_tag"]}
            return SimpleNamespace(bytes=got.bytes, meta=meta)

        def as_google_puts(
            client: MemoryStore, key: str, data: bytes, *, mode: Any, **named: Any
        ) -> object:
            if not isinstance(mode, str):
                if "version" not in mode:
                    raise GenericError("Generic GCS error: Version required for conditional update")
                mode = {"e_tag": mode["version"]}
            return put(client, key, data, mode=mode, **named)

        monkeypatch.setattr(obstore, "get", as_google_gets)
        monkeypatch.setattr(obstore, "put", as_google_puts)
        return ObjectShelf(cast("ObjectStore", MemoryStore()), parse_object_url("gs://anchors"))

    def test_it_keeps_conditions(self, shelf: Shelf) -> None:
        assert checked_shelf(shelf) is shelf
        assert shelf.held("") == {}


def test_what_is_read_needs_no_more_requests_than_it_has_parts(
    line: Line, filled: Location
) -> None:
    location = object_location(parse_object_url(PLACE))
    assert location.get("run1.zarr/rank0/c.0", 7, 90) == FILES["run1.zarr/rank0/c.0"][7:97]
    assert len(line.asked) == 1


def test_a_store_that_answers_a_range_at_the_end_with_no_byte_has_no_more_there(
    filled: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Azure's does, whose answer the client refuses."""

    def refused(*_: object, **__: object) -> None:
        raise GenericError(
            "Generic MicrosoftAzure error: Wanted range starting at 10, but object was only 10 "
            "bytes long\n\nsource: InvalidRangeRequest { source: StartTooLarge { requested: 10 } }"
        )

    monkeypatch.setattr(obstore, "get", refused)
    assert filled.get("top", 10, 5) == b""
