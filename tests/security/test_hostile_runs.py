"""A damaged or hostile run: each command answers in words, and the runs beside it stay readable.

Nothing in it is followed out of it or waited for, and no command takes more memory or time than
`limited` allows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchor_server import serve
from tests.security.hostile import (
    NASTY,
    SPOILT,
    STRANGE,
    Change,
    HostilePlace,
    catalogue_of,
    cut,
    files_of,
    flip,
    grow,
    make_hostile,
    places_in,
    put,
    remove,
    write_catalogue,
)
from tests.security.limited import Limited
from tests.seeds import examples


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited() as found:
        yield found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("template") / "store"
    make_hostile(store)
    return store


@pytest.fixture
def place(limited: Limited, template: Path, tmp_path: Path) -> HostilePlace:
    return HostilePlace(limited, template, tmp_path)


CHANGES = {"spoilt": SPOILT, "grown": [grow], "removed": [remove], "strange": STRANGE}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.long] * (kind in ("grown", "strange")))
        for kind in CHANGES
    ],
)
@pytest.mark.parametrize(
    "quarter", [0, *(pytest.param(one, marks=pytest.mark.wide) for one in (1, 2, 3))]
)
def test_whatever_becomes_of_a_file_each_command_answers_in_words(
    place: HostilePlace, kind: str, quarter: int
) -> None:
    changes = CHANGES[kind]
    dice = random.Random(len(changes))
    # By quarters, so that each file meets one of the four, and all of them in the wide tests. Data
    # and metadata stand in turn: each row of four begins one further.
    names = [path.relative_to(place.run) for path in files_of(place.run)]
    mine = ([*CHANGES].index(kind) + quarter) % 4
    for name in [name for at, name in enumerate(names) if (at + at // 4) % 4 == mine]:
        change = dice.choice(changes)
        change(place.run / name, dice, place)
        place.check(f"{change.__name__} {name}")
        place.mend(name)


TOUCHED = ["zarr.json", "rank0/catalog/c.0", "rank0/records/seq/c.0", "rank0/records/row/c.0"]
VALUES = "rank0/forms/float32_4/value/c.0.0"


ALL_CHANGES = [*SPOILT, grow, remove, *STRANGE]


@pytest.mark.parametrize(
    "change",
    [
        # Every change is made to files of a store above; here one of each kind is served.
        pytest.param(change, marks=[pytest.mark.long] * (change not in (flip, cut, remove)))
        for change in ALL_CHANGES
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.wide)])
def test_a_collector_serves_a_spoilt_run_as_harmlessly(
    place: HostilePlace, change: Change, half: int
) -> None:
    with serve(place.store, bind="127.0.0.1:0") as collector:
        place.where = f"grpc://{collector.address}"
        dice = random.Random(0)
        first = (ALL_CHANGES.index(change) + half) % 2
        for name in [*TOUCHED, VALUES][first::2]:
            change(place.run / name, dice, place)
            place.check(f"{change.__name__} {name}")
            place.mend(Path(name))


@pytest.mark.parametrize(
    "folder", ["rank0", "rank0/records", "rank0/forms", "rank0/forms/float32_4"]
)
@pytest.mark.parametrize("served", [False, True])
def test_a_folder_that_is_a_link_is_refused_and_called_so(
    place: HostilePlace, folder: str, served: bool
) -> None:
    aside = place.store.parent / "aside"
    (place.run / folder).rename(aside)
    (place.run / folder).symlink_to(aside)
    pull = ("pull", "bad", "--tensor", "fc1@grad", "-o", place.out)
    with serve(place.store, bind="127.0.0.1:0") as collector:
        place.where = f"grpc://{collector.address}" if served else place.store
        found = place.told(folder, *pull)
        place.check(folder)
    assert found.code == 2
    assert (
        f"{folder} is a link, and only files and folders of its own belong into a run" in found.err
    )


@pytest.mark.parametrize("served", [False, True])
def test_a_run_that_leads_out_of_the_store_hides_no_other(
    place: HostilePlace, served: bool
) -> None:
    (place.store / "away.zarr").symlink_to(place.store.parent)
    (place.store / "loop.zarr").symlink_to("loop.zarr")
    (place.store / "alias.zarr").symlink_to("good.zarr")
    with serve(place.store, bind="127.0.0.1:0") as collector:
        place.where = f"grpc://{collector.address}" if served else place.store
        found = place.told("links", "runs", "--json")
    names = [run["name"] for run in found.json]
    assert names == ["alias", "bad", "good"]
    assert ("leads out of the store" in found.err) == served


def test_the_folder_of_a_run_may_be_a_link_that_its_user_made(place: HostilePlace) -> None:
    aside = place.store.parent / "aside.zarr"
    place.run.rename(aside)
    place.run.symlink_to(aside)
    for name in ("bad", place.run, aside):
        found = place.told("link", "pull", name, "--tensor", "fc1@grad", "--json")
        assert (found.code, len(found.json["value"])) == (3, 4), found  # 3: its stated gap


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("form", {"shape": [-4]}),
        ("form", {"shape": [0.5]}),
        ("form", {"shape": [1 << 62, 1 << 62]}),
        ("form", {"shape": [1] * 65}),
        ("form", {"dtype": "../../../secret"}),
        ("form", {"width": 0}),
        ("form", {"width": 65}),
        ("array", {"rows": 0}),
        ("array", {"rows": -1}),
        ("series", {"name": "\ud800"}),
        ("gap", {"gap": {"first_step": "0"}}),
        ("attempt", {"header": []}),
    ],
)
def test_a_catalogue_that_says_what_cannot_be_is_damaged(
    place: HostilePlace, kind: str, entry: dict[str, Any]
) -> None:
    entries = catalogue_of(place.run)
    next(one for one in entries if kind in one and entry.keys() & one.keys()).update(entry)
    write_catalogue(place.run, entries)
    found = place.told(kind, "names", "bad")
    assert found.code == 3
    assert "the catalogue of rank 0 is damaged at" in found.err
    place.check(kind)


def test_a_shape_that_no_memory_holds_is_refused_before_it_is_read(place: HostilePlace) -> None:
    entries = catalogue_of(place.run)
    next(one for one in entries if "form" in one and one.get("shape") == [4])["shape"] = [1 << 40]
    write_catalogue(place.run, entries)
    grow(place.run / VALUES, random.Random(0), place)
    found = place.told("shape", "pull", "bad", "--tensor", "fc1@grad", "-o", place.out)
    assert found.code == 2
    assert "do not fit into memory" in found.err


def test_a_file_that_was_made_a_terabyte_is_read_as_far_as_the_run_goes(
    place: HostilePlace,
) -> None:
    for file in files_of(place.run):
        if file.name != "zarr.json":
            grow(file, random.Random(0), place)
    found = place.told("grown", "pull", "bad", "--tensor", "fc1@grad", "--json")
    sound = place.told("sound", "pull", "good", "--tensor", "fc1@grad", "--json")
    assert np.array_equal(found.json["value"][:3], sound.json["value"])


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_a_catalogue_says_with_a_good_checksum_each_command_answers_in_words(
    place: HostilePlace, data: st.DataObject
) -> None:
    entries = catalogue_of(place.run)
    number = data.draw(st.integers(0, len(entries) - 1))
    where = data.draw(st.sampled_from(list(places_in(entries[number]))))
    value = data.draw(st.sampled_from(NASTY))
    put(entries[number], where, value)
    write_catalogue(place.run, entries)
    place.check(f"{entries[number]!r:.200}")
    place.mend(Path("rank0/catalog/c.0"))


RAW = "\x1b]0;pwned\x07\x1b[2J\u202e\r"
"""What would rename a terminal, clear it, reverse text and go back to the start of the line."""
TEXTS = [
    *(("series", key) for key in ("name", "kind", "mode")),
    ("form", "dtype"),
    *(("gap", "gap", key) for key in ("name", "kind", "mode", "reason")),
    *(("edges", "edges", key) for key in ("name", "phase")),
    *(("edges", "edges", "ops", 0), ("edges", "edges", "parents", 0, 0)),
    *(("phase", "name"), ("state", "state"), ("attempt", "header", "torch.backend")),
]
ASKED = [
    *(("runs",), ("names", "bad"), ("names", "bad", "--tree"), ("verify", "bad")),
    *(("compare", "good", "bad"), ("doctor", "bad")),
    *(("hist", "bad", "-t", "*"), ("hist", "bad", "-t", "act", "--as", "fp16")),
    *(("stats", "bad", "-t", "*"), ("pull", "bad", "-t", "act")),
    *(("names", "bad", "nothing"), ("stats", "bad", "-t", "*", "--mode", "final")),
]


@pytest.mark.parametrize("where", TEXTS, ids=lambda where: "-".join(map(str, where)))
def test_no_text_of_a_run_reaches_the_terminal_raw(
    place: HostilePlace, where: tuple[Any, ...]
) -> None:
    entries = catalogue_of(place.run)
    for entry in entries:
        if where[0] in entry and where[1] in entry:
            put(entry, where[1:], RAW)
    write_catalogue(place.run, entries)
    for call in ASKED:
        place.told(f"{where}", *call)
