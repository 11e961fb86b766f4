"""Where spools are, how large they grow, and what stands in their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import OptionError
from anchorlib.spool.format import OPEN, CorruptBytes, SegmentEntry, header
from anchorlib.spool.limit import limit_of, parse_bytes
from anchorlib.spool.spool_folder import spool_place
from tests.anchorlib.spool.spooling import entries


@pytest.mark.parametrize(
    ("text", "size"),
    [("1048576", 1 << 20), ("10GiB", 10 << 30), ("1.5 MiB", 3 << 19), ("2kb", 2000), ("3M", 3e6)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text, "X") == size


@pytest.mark.parametrize("text", ["", "ten", "-1", "10 GiBs", "1e9", "0x10", "GiB"])
def test_what_is_no_size_is_refused_with_the_variables_name(text):
    with pytest.raises(OptionError, match=r"ANCHOR_SPOOL_LIMIT='.*' is no size; write 10GiB"):
        parse_bytes(text, "ANCHOR_SPOOL_LIMIT")


def test_the_default_limit_is_the_smaller_of_10_gib_and_a_fifth_of_the_free_disk():
    assert limit_of(100 << 30, {}) == 10 << 30
    assert limit_of(10 << 30, {}) == 2 << 30
    assert limit_of(10 << 30, {"ANCHOR_SPOOL_LIMIT": "1MiB"}) == 1 << 20


def test_the_spools_place_is_told_or_the_jobs_or_the_users(tmp_path):
    assert spool_place({"ANCHOR_SPOOL": "/a", "SLURM_TMPDIR": "/b"}) == Path("/a")
    assert spool_place({"SLURM_TMPDIR": "/b", "HOME": "/c"}) == Path("/b/anchorlib/spool")
    assert spool_place({"HOME": str(tmp_path)}) == tmp_path / ".cache/anchorlib/spool"
    assert "anchorlib-" in str(spool_place({"HOME": "/nowhere"}))


# -- the format


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 40), st.booleans(), st.binary(min_size=2, max_size=60)),
        max_size=8,
    )
)
def test_what_was_written_is_read(parts):
    numbers = [number | (OPEN if more else 0) for number, more, _ in parts]
    data = b"".join(header(n, m) + m for n, (_, _, m) in zip(numbers, parts, strict=True))
    found = list(entries(data))
    assert all(isinstance(one, SegmentEntry) for one in found)
    assert [(one.seq, one.message) for one in found] == [  # type: ignore[union-attr]
        (n, m) for n, (_, _, m) in zip(numbers, parts, strict=True)
    ]


@given(st.integers(2, 6), st.data())
def test_one_damaged_byte_costs_one_entry(count, data):
    messages = [b"\x1a" + bytes([n]) * 40 for n in range(count)]
    parts = [header(n + 1, message) + message for n, message in enumerate(messages)]
    whole = bytearray(b"".join(parts))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = list(entries(bytes(whole)))
    kept = [one.message for one in found if isinstance(one, SegmentEntry)]
    hit = at // len(parts[0])
    assert kept == [m for n, m in enumerate(messages) if n != hit]
    assert sum(isinstance(one, CorruptBytes) for one in found) == 1
