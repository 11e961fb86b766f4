"""Spools seen from outside: what they are of, and whether a process owns them."""

from __future__ import annotations

import pytest

from anchorlib.errors import OptionError
from anchorlib.spool import spool_room, spools_here
from anchorlib.spool.spool_folder import LABEL
from tests.anchorlib.spool.spooling import Written, segments


def test_a_spool_says_what_it_is_of_how_much_and_who_owns_it(tmp_path):
    left = Written(tmp_path)
    left.put(range(20))
    (live,) = spools_here(tmp_path)
    assert (live.path, live.run, live.rank, live.live) == (left.folder, "run1", 0, True)
    left.die()
    (dead,) = spools_here(tmp_path)
    assert not dead.live
    assert dead.nbytes == sum(file.stat().st_size for file in segments(left.folder)) > 0


@pytest.mark.parametrize("label", ["", "{", '{"run":' * 100_000, '{"rank": Infinity}', "[]"])
def test_a_spool_whose_label_was_lost_is_still_one(tmp_path, label):
    left = Written(tmp_path)
    left.put(range(3))
    left.die()
    text = (left.folder / LABEL).read_text()
    if label == '{"rank": Infinity}':
        label = text.replace('"rank": 0', '"rank": Infinity')
    (left.folder / LABEL).write_text(label)
    if not label:
        (left.folder / LABEL).unlink()
    (found,) = spools_here(tmp_path)
    assert (found.run, found.rank, found.to) == (None, None, None)
    assert found.nbytes > 0


def test_looking_makes_and_takes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "7MiB")
    assert list(spools_here()) == []
    room = spool_room()
    assert (room.path, room.limit) == (tmp_path / "not" / "yet", 7 << 20)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "plenty")
    with pytest.raises(OptionError, match="ANCHOR_SPOOL_LIMIT"):
        spool_room()
