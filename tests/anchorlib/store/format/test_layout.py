"""No name, however hostile, leaves its place in the tree or takes another's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorlib.store.format.chunk_sizes import rows_per_chunk
from anchorlib.store.format.layout import is_safe_key, segment

UTF8 = st.text("ab./\\_0%*@:~- \x1b\n\0\xe9\u202eA", min_size=1, max_size=12) | st.text(
    st.characters(codec="utf-8"), min_size=1
)


@given(UTF8)
def test_a_name_becomes_one_short_visible_segment(name: str) -> None:
    found = segment(name)
    assert "/" not in found
    assert found.isascii()
    assert found.isprintable()
    assert len(found) <= 120
    assert not found.startswith((".", "__"))
    assert found != "zarr.json"
    assert is_safe_key(found)


@given(UTF8, UTF8)
def test_different_names_have_different_segments(one: str, two: str) -> None:
    assert (segment(one) == segment(two)) == (one == two)


def test_long_names_that_differ_at_the_end_stay_apart() -> None:
    long = "layer." * 170
    assert segment(f"{long}a") != segment(f"{long}b")
    assert len(segment(f"{long}a")) <= 120


def test_ordinary_names_stay_readable() -> None:
    assert segment("model.layers.0.fc1") == "model.layers.0.fc1"


@given(st.text("ab./\0", max_size=8))
def test_a_key_is_safe_only_if_it_stays_below_its_root(key: str) -> None:
    parts = key.split("/")
    inside = all(part and part not in (".", "..") for part in parts) and "\0" not in key
    assert not is_safe_key(key) or inside


def test_large_records_have_files_of_their_own_and_small_ones_share() -> None:
    assert rows_per_chunk(1 << 30) == rows_per_chunk(1 << 20) == 1
    assert rows_per_chunk(64 << 10) == 32
    assert rows_per_chunk((1 << 20) - 1) == 2
    assert rows_per_chunk(400) == (2 << 20) // 400
    assert rows_per_chunk(0) == rows_per_chunk(4) == 65536
