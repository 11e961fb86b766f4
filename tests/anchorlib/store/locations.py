"""What every Location promises; `test_location` holds each implementation to it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.errors import AnchorError, StoreError
from anchorlib.store import Location
from anchorlib.store.locations.location import read_into
from anchorlib.wire import READ_BYTES
from tests.seeds import examples

FILES = {
    "top": b"0123456789",
    "empty": b"",
    "run1.zarr/zarr.json": b"{}",
    "run1.zarr/rank0/c.0": bytes(range(256)) * 40,
    "run1.zarr/rank0/c.1": b"x",
    "run1.zarr/rank1/100%25-_.a": b"odd name",
}
"""What `fill` puts below a directory for the promises to be tested on."""


def fill(root: Path) -> None:
    """Makes the files, and some that no location may show."""
    for key, data in FILES.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(data)
    (root / ".anchor").mkdir()
    (root / ".anchor" / "secret").write_bytes(b"hidden")
    (root.parent / "outside").write_bytes(b"outside")
    odd = root / "odd.zarr"
    odd.mkdir()
    (odd / "file").symlink_to(root / "top")
    (odd / "folder").symlink_to(root / "run1.zarr")
    (odd / "loop").symlink_to(odd / "loop")
    os.mkfifo(odd / "pipe")


FEW = settings(max_examples=examples(50))
PLACES = st.integers(0, 12_000)
KEYS = st.text(st.sampled_from("abtpor./\\\0 zarun1.jsc0\u202e~%"), max_size=30)


class LocationPromises:
    """Inherit, and give `root`, a directory made by `fill`, and `location` over it as fixtures."""

    @pytest.fixture
    def grown(self, root: Path) -> Iterator[Path]:
        """A folder of `root` that a test may fill; it is gone afterwards."""
        folder = root / "grown.zarr"
        folder.mkdir()
        yield folder
        shutil.rmtree(folder)

    @pytest.mark.parametrize("key", FILES)
    def test_a_file_is_read_whole(self, location: Location, key: str) -> None:
        assert location.get(key) == FILES[key]

    @pytest.mark.parametrize(("start", "length"), [(0, 3), (3, None), (4, 2), (9, 5), (0, 0)])
    def test_a_range_is_what_slicing_gives(
        self, location: Location, start: int, length: int | None
    ) -> None:
        end = None if length is None else start + length
        assert location.get("top", start, length) == FILES["top"][start:end]

    @pytest.mark.parametrize(("start", "size"), [(0, 3), (3, 7), (9, 5), (10, 2), (50, 2), (0, 0)])
    def test_a_range_goes_straight_to_its_place(
        self, location: Location, start: int, size: int
    ) -> None:
        out = bytearray(b"-" * size)
        part = FILES["top"][start : start + size]
        assert read_into(location, "top", start, memoryview(out)) == len(part)
        assert bytes(out) == part.ljust(size, b"-")
        for key in ("none", "run1.zarr", "top/below"):
            assert read_into(location, key, 0, memoryview(bytearray(2))) is None

    def test_a_range_behind_the_end_is_empty(self, location: Location) -> None:
        assert location.get("top", 10) == b""
        assert location.get("top", 50, 5) == b""

    def test_any_range_of_any_file_is_that_part_of_it(self, location: Location) -> None:
        @given(st.sampled_from(sorted(FILES)), PLACES, st.none() | PLACES)
        @FEW
        def holds(key: str, start: int, length: int | None) -> None:
            part = FILES[key][start : None if length is None else start + length]
            assert location.get(key, start, length) == part
            if length is not None:
                out = bytearray(length)
                assert read_into(location, key, start, memoryview(out)) == len(part)
                assert bytes(out[: len(part)]) == part

        holds()

    @pytest.mark.parametrize("length", [1 << 31, 1 << 40, (1 << 63) - 1])
    def test_a_length_beyond_the_end_costs_nothing(self, location: Location, length: int) -> None:
        assert location.get("top", 2, length) == b"23456789"
        assert location.get("empty", 0, length) == b""
        assert location.get("none", 0, length) is None

    def test_a_file_of_many_messages_comes_whole(self, location: Location, grown: Path) -> None:
        data = bytes(range(251)) * (2 * READ_BYTES // 251 + 3)
        (grown / "large").write_bytes(data)
        assert location.get("grown.zarr/large") == data
        for start, length in ((0, READ_BYTES), (READ_BYTES - 1, 2), (3, READ_BYTES + 9)):
            part = data[start : start + length]
            assert location.get("grown.zarr/large", start, length) == part
            out = bytearray(length)
            assert read_into(location, "grown.zarr/large", start, memoryview(out)) == length
            assert bytes(out) == part

    def test_a_sparse_file_is_read_where_it_is_asked(self, location: Location, grown: Path) -> None:
        with (grown / "sparse").open("wb") as file:
            file.truncate(1 << 40)
            file.seek(1 << 39)
            file.write(b"here")
        assert location.get("grown.zarr/sparse", (1 << 39) - 1, 6) == b"\0here\0"
        assert location.get("grown.zarr/sparse", 1 << 41, 6) == b""

    def test_what_is_written_meanwhile_is_seen(self, location: Location, grown: Path) -> None:
        key, file = "grown.zarr/rank0/live", grown / "rank0" / "live"
        assert location.get(key) is None
        assert location.list("grown.zarr/rank0") == []
        file.parent.mkdir()
        file.write_bytes(b"one")
        assert (location.get(key), location.list("grown.zarr/rank0")) == (b"one", ["live"])
        with file.open("ab") as more:
            more.write(b", two")
        assert (location.get(key), location.get(key, 3)) == (b"one, two", b", two")
        (grown / "other").write_bytes(b"new")
        (grown / "other").rename(file)
        assert location.get(key) == b"new"
        file.unlink()
        assert location.get(key) is None

    def test_many_threads_read_at_once(self, location: Location) -> None:
        keys = [*FILES, "none", "run1.zarr"] * 20
        with ThreadPoolExecutor(8) as threads:
            assert [*threads.map(location.get, keys)] == [FILES.get(key) for key in keys]

    @pytest.mark.parametrize(
        "key",
        [
            *("none", "run1.zarr/none", "run1.zarr", "run1.zarr/rank0", "top/below"),
            *("x" * 255, "x" * 256, "/".join(["deep"] * 200), "run1.zarr\\rank0", "\u202e", "TOP"),
        ],
    )
    def test_what_is_no_file_is_none(self, location: Location, key: str) -> None:
        assert location.get(key) is None
        assert location.get(key, 3, 5) is None
        assert location.get(key, 0, 0) is None
        assert read_into(location, key, 0, memoryview(bytearray(3))) is None

    @pytest.mark.parametrize(
        ("prefix", "names"),
        [
            ("", ["empty", "odd.zarr/", "run1.zarr/", "top"]),
            ("run1.zarr", ["rank0/", "rank1/", "zarr.json"]),
            ("run1.zarr/", ["rank0/", "rank1/", "zarr.json"]),
            ("run1.zarr/rank0", ["c.0", "c.1"]),
            ("run1.zarr/rank1/", ["100%25-_.a"]),
            ("none", []),
            ("top", []),
        ],
    )
    def test_a_directory_is_listed_with_its_own_marked(
        self, location: Location, prefix: str, names: list[str]
    ) -> None:
        assert location.list(prefix) == names

    @pytest.mark.parametrize(
        "key",
        ["../outside", "run1.zarr/../../outside", "/etc/passwd", ".anchor/secret", "a//b", "a\0b"],
    )
    def test_a_key_that_leads_elsewhere_is_refused(self, location: Location, key: str) -> None:
        for ask in (location.get, location.list):
            with pytest.raises(AnchorError):
                ask(key)

    def test_walking_the_lists_finds_every_file_and_nothing_hidden(
        self, location: Location
    ) -> None:
        def walked(folder: str) -> list[str]:
            found = []
            for name in location.list(folder):
                inner = walked(f"{folder}{name}") if name.endswith("/") else [f"{folder}{name}"]
                found += inner
            return found

        assert [key for key in FILES if key not in walked("run1.zarr/")] == ["top", "empty"]
        assert {"top", "empty", "run1.zarr/"} <= set(location.list(""))
        assert not any(name.startswith(".") for name in location.list(""))

    def test_a_folder_of_many_files_is_listed_whole_and_sorted(
        self, location: Location, grown: Path
    ) -> None:
        names = sorted(
            [*(f"{n}-{'x' * 240}" for n in range(5000)), "\u00e9", "Z", "a", "\U0001f600"]
        )
        for name in names:
            (grown / name).touch()
        assert location.list("grown.zarr") == names

    def test_whatever_the_key_nothing_but_the_stores_own_files_comes_out(
        self, location: Location
    ) -> None:
        @given(KEYS)
        @FEW
        def holds(key: str) -> None:
            with contextlib.suppress(AnchorError):
                assert location.get(key) in (None, FILES.get(key))
            with contextlib.suppress(AnchorError):
                assert not {"outside", "secret", ".anchor/"} & {*location.list(key)}
            assert location.get("top") == FILES["top"]  # a refusal leaves it as it was

        holds()

    @pytest.mark.parametrize(
        ("key", "what"),
        [
            ("odd.zarr/file", "odd.zarr/file is a link"),
            ("odd.zarr/folder/zarr.json", "odd.zarr/folder is a link"),
            ("odd.zarr/loop", "odd.zarr/loop is a link"),
            ("odd.zarr/pipe", "odd.zarr/pipe is a pipe"),
        ],
    )
    def test_no_link_is_followed_and_no_pipe_waited_for(
        self, location: Location, key: str, what: str
    ) -> None:
        with pytest.raises(StoreError, match=what):
            location.get(key)
        with pytest.raises(StoreError, match=what):
            read_into(location, key, 0, memoryview(bytearray(2)))

    def test_a_folder_behind_a_link_is_not_listed(self, location: Location) -> None:
        assert location.list("odd.zarr") == ["file", "folder/", "loop", "pipe"]
        with pytest.raises(StoreError, match=r"odd.zarr/folder is a link"):
            location.list("odd.zarr/folder")

    def test_it_is_a_location(self, location: Location) -> None:
        assert isinstance(location, Location)
