"""A run of many ranks is read rank by rank: what is kept in memory is bounded, and so are looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorlib.reading import open_run
from anchorlib.store import RunReader
from anchorlib.store.read import room
from tests.anchorlib.reading.runs import make_run, told
from tests.cli.made import anchor

RANKS = 5
COMMANDS = (
    ("names", "run1"),
    ("runs",),
    ("hist", "run1", "-t", "*"),
    ("stats", "run1", "-t", "*"),
    ("stats", "run1", "-t", "fc1", "--rank", "2", "--step", "1:"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("store"), ranks=RANKS)


def test_what_is_kept_of_the_ranks_is_bounded_and_the_answers_are_the_same(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = told(open_run("run1", store))
    answers = [anchor(*words, "--store", store, "--json").out for words in COMMANDS]
    monkeypatch.setattr(room, "_quarter", lambda: 1)
    run = open_run("run1", store)
    assert told(run) == here
    reader = RunReader(run._reader.location, "run1")
    reader.refresh()
    for rank in reader.ranks:
        for name in ("step", "order"):
            reader.rank(rank).column(name)
        assert reader.room.taken == 2 * reader.rank(rank).column("step").nbytes
    assert [anchor(*words, "--store", store, "--json").out for words in COMMANDS] == answers


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_question_looks_at_a_run_as_often_for_many_ranks_as_for_few(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    looks = 0
    refresh = RunReader.refresh

    def counted(self: RunReader) -> None:
        nonlocal looks
        looks += 1
        refresh(self)

    monkeypatch.setattr(RunReader, "refresh", counted)
    counts = []
    for place in (store, make_run(tmp_path, ranks=3)):
        looks = 0
        assert anchor(*words, "--store", place, "--json").code == 0
        counts.append(looks)
    assert counts[0] == counts[1]
