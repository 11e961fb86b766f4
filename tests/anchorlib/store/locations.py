"""What every Location promises; `test_location` holds each implementation to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anchorlib.errors import AnchorError, StoreError
from anchorlib.store import Location
from anchorlib.store.location import read_into

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


class LocationPromises:
    """Inherit, and give `location` as a fixture over a directory made by `fill`."""

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

    @pytest.mark.parametrize(
        "key", ["none", "run1.zarr/none", "run1.zarr", "run1.zarr/rank0", "top/below"]
    )
    def test_what_is_no_file_is_none(self, location: Location, key: str) -> None:
        assert location.get(key) is None

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
