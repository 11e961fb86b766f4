"""Spools that were cut, scrambled, scribbled over: what is good is delivered."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.spool.format import SegmentEntry, kind_of
from anchorlib.spool.holes import LOST
from anchorlib.store import LocalLocation, RankReader
from anchorlib.wire import FrameError
from tests.anchorlib.spool.spooling import (
    Written,
    entries,
    good_records,
    segments,
)
from tests.delivery.lines import (
    free_port,
    numbered,
    push,
    sink_to,
    told,
)
from tests.seeds import seeds
from tests.server.pushing import stored


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Eight records in frames of one, all in one segment; the last two take 100 bytes each."""
    left = Written(tmp_path_factory.mktemp("template"), frame_bytes=1 << 20)
    for number in range(8):
        left.put([number])
    left.die()
    return left.folder


def _last_two(file: Path) -> list[SegmentEntry]:
    """The entries of the last two frames; what is defined for the last one stands between."""
    found = [one for one in entries(file.read_bytes()) if isinstance(one, SegmentEntry)]
    return [one for one in found if one.message[0] == 0x1A][-2:]


@pytest.mark.slow
def test_a_segment_cut_at_any_byte_of_its_last_two_entries_gives_all_that_is_whole(
    template, tmp_path
):
    (source,) = segments(template)
    data = source.read_bytes()
    before, last = _last_two(source)
    folder = tmp_path / "spool"
    shutil.copytree(template, folder)
    for size in range(before.start, len(data)):
        (folder / source.name).write_bytes(data[:size])
        whole = 6 if size < before.end else 7
        assert good_records(folder) == (list(range(whole)), 0), size
    assert last.end == len(data)


@pytest.mark.slow
def test_any_byte_flipped_in_the_last_two_entries_costs_that_entry_alone(template, tmp_path):
    (source,) = segments(template)
    data = source.read_bytes()
    before, last = _last_two(source)
    folder = tmp_path / "spool"
    shutil.copytree(template, folder)
    for at in range(before.start, len(data)):
        scribbled = bytearray(data)
        scribbled[at] ^= 0x41
        (folder / source.name).write_bytes(scribbled)
        (folder / "lost").unlink(missing_ok=True)
        hit = 6 if at < before.end else 7
        known = 1 if at < before.end else 0
        assert good_records(folder) == ([n for n in range(8) if n != hit], known), at
    assert last.end == len(data)


@pytest.mark.slow
def test_damage_is_told_stored_and_set_aside(tmp_path):
    left = Written(tmp_path / "spools", segment_bytes=3000)
    left.put(range(200))
    left.spool.writer.notes(closed=True)
    left.die()
    victim = segments(left.folder)[3]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    done = push(left.folder, tmp_path / "store")
    assert done.set_aside == 1
    assert 0 < done.lost < 50
    found = stored(tmp_path / "store")
    assert len(found) == 200 - done.lost == done.records
    assert set(found) <= {told(numbered(n)) for n in range(200)}
    (gap,) = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0).catalogue.gaps.values()
    assert (gap.count, gap.reason) == (done.lost, "damaged on the trainer's disk")
    assert [path.suffix for path in left.folder.glob("0*")] == [".bad"]


def test_a_definition_that_is_damaged_is_found_in_the_next_segment(tmp_path):
    left = Written(tmp_path / "spools", segment_bytes=3000)
    left.put(range(100))
    left.die()
    files = segments(left.folder)
    victim = files[2]
    data = bytearray(victim.read_bytes())
    defines = [
        one
        for one in entries(bytes(data))
        if isinstance(one, SegmentEntry) and one.message[0] == 0x12
    ]
    for one in defines:
        data[one.start + 20] ^= 1
    victim.write_bytes(data)
    for file in files[:2]:
        file.unlink()
    first = int(victim.name.split(".")[1])
    assert push(left.folder, tmp_path / "store").lost == 0
    assert stored(tmp_path / "store") == [told(numbered(n)) for n in range(first, 100)]


@pytest.mark.parametrize("seed", seeds(4, 10, 40))
def test_a_spool_scribbled_over_at_random_gives_nothing_wrong(tmp_path, seed):
    chance = random.Random(seed)
    left = Written(tmp_path / "spools", segment_bytes=4000)
    left.put(range(150))
    left.die()
    for _ in range(chance.randrange(1, 6)):
        victim = chance.choice(segments(left.folder))
        data = bytearray(victim.read_bytes())
        at = chance.randrange(max(1, len(data)))
        data[at : at + 64] = chance.randbytes(min(64, len(data) - at))
        victim.write_bytes(data[: chance.choice([len(data), at + 10])])
    try:
        done = push(left.folder, tmp_path / "store")
    except Exception as fault:
        raise AssertionError(f"seed {seed}") from fault
    assert done.set_aside
    found = stored(tmp_path / "store")
    steps = [step for _, step, _ in found]
    assert steps == sorted(set(steps)), f"seed {seed}"
    assert found == [told(numbered(step)) for step in steps], f"seed {seed}"


def test_damage_while_the_session_lives_is_counted_and_stored_too(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    sink = sink_to(address, tmp_path / "spools")
    for start in range(0, 100, 10):
        sink.put(block_of([numbered(n) for n in range(start, start + 10)]))
    (segment,) = segments(sink.spool)
    data = bytearray(segment.read_bytes())
    # Of definitions this process needs none from the disk: only a frame can be lost.
    whole = (entry for entry in entries(bytes(data)) if isinstance(entry, SegmentEntry))
    frames = [entry for entry in whole if kind_of(entry.message) == "frame"]
    at = (frames[5].start + frames[5].end) // 2
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    with serve(tmp_path / "store", address):
        assert sink.close(20) == 0
    assert 0 < sink.dropped <= 20
    found = stored(tmp_path / "store")
    assert len(found) == 100 - sink.dropped
    assert set(found) <= {told(numbered(n)) for n in range(100)}
    (gap,) = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0).catalogue.gaps.values()
    assert gap.count == sink.dropped
    assert [path.suffix for path in sink.spool.glob("0*")] == [".bad"]


@pytest.mark.parametrize("said", ["[" * 100_000, '{"first": 1e999, "end": 3}', "no JSON"])
def test_a_line_about_lost_records_that_says_nothing_is_passed_over(template, tmp_path, said):
    folder = tmp_path / "spool"
    shutil.copytree(template, folder)
    (folder / LOST).write_text(f"{said}\n")
    assert good_records(folder) == (list(range(8)), 0)


@pytest.mark.parametrize("header", ["[" * 100_000, "no JSON"])
def test_a_spool_whose_hello_has_no_header_is_refused_in_words(tmp_path, header):
    left = Written(tmp_path / "spools", header=header)
    left.put(range(2))
    left.die()
    with pytest.raises(FrameError, match="the run header in the spool is no JSON object"):
        push(left.folder, tmp_path / "store")
