"""A damaged or hostile run: each command answers in words, and the runs beside it stay readable."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorlib.record import Edges, Gap, Parent
from anchorlib.store import Writer
from anchorlib.store.catalog import encode
from tests.cli.made import Outcome, make_run, record
from tests.security.limited import Limited

SECRET = b"root:x:0:0:root" * 40
PLAIN = np.arange(4, dtype=np.float32)


def records() -> list[Any]:
    """Of one tensor of one shape, one without values, and one of too many shapes for arrays."""
    found = [record("fc1", "grad", PLAIN + step, step=step) for step in range(3)]
    found += [record("act", "value", None, dropped=PLAIN, mode="summary", step=1)]
    found += [
        record("seq", "value", np.ones((size, 2), np.float16), step=size) for size in range(12)
    ]
    return found


def make_hostile(store: Path) -> Path:
    """The run `bad` beside a sound one; the folder of `bad`."""
    make_run(store, records(), "good")
    gap = Gap("fc1", "grad", "all", "the queue was full", 2, 0, 1)
    make_run(store, records(), "bad", gaps=[gap])
    with Writer.open(store, "bad", 0, resume=True, header={"torch.backend": "eager"}) as writer:
        parents = (Parent("fc1"),)
        writer.edges([Edges("act", "train", 0, 0, (4,), 0, parents, ("ReluBackward0",), ((-1,),))])
        writer.write([record("fc1", "grad", PLAIN, step=7)])
    return store / "bad.zarr"


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited() as found:
        yield found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("template") / "store"
    make_hostile(store)
    return store


class Place:
    """A store with a run to spoil, and what every command has to be in spite of that."""

    def __init__(self, limited: Limited, template: Path, root: Path) -> None:
        self.limited = limited
        self.template = template
        self.store = root / "store"
        self.out = root / "out.npz"
        self.secret = root / "secret"
        self.secret.write_bytes(SECRET)
        self.where: object = self.store
        shutil.copytree(template, self.store)

    @property
    def run(self) -> Path:
        return self.store / "bad.zarr"

    def mend(self) -> None:
        """Makes the run whole again."""
        shutil.rmtree(self.run)
        shutil.copytree(self.template / "bad.zarr", self.run)

    def check(self, what: str) -> None:
        """Runs every command on the spoilt run."""
        self.out.unlink(missing_ok=True)
        for call in (
            ("names", "bad"),
            ("pull", "bad", "--tensor", "fc1@grad", "-o", self.out),
            ("pull", "bad", "--tensor", "seq", "--json"),
            ("verify", "bad"),
            ("compare", "good", "bad"),
        ):
            self.told(what, *call)
        runs = self.told(what, "runs", "--json")
        assert "good" in [run["name"] for run in runs.json], (what, runs)
        sound = self.told(what, "pull", "good", "--tensor", "fc1@grad", "-o", self.out)
        assert sound.code == 0, (what, sound)

    def told(self, what: str, *call: object) -> Outcome:
        found = self.limited.anchor(*call, "--store", self.where)
        problem = (what, call[0], found)
        assert found.code in {0, 1, 2, 3}, problem
        lines = found.err.splitlines()
        assert len(lines) <= 4, problem
        assert all(line.startswith("anchor: ") and len(line) < 20_000 for line in lines), problem
        assert "internal error" not in found.err, problem
        shown = (found.out + found.err).replace("\n", "")
        assert shown.isprintable(), problem
        assert "root:x" not in shown, problem
        if self.out.exists():
            assert SECRET[:8] not in self.out.read_bytes(), problem
        return found


@pytest.fixture
def place(limited: Limited, template: Path, tmp_path: Path) -> Place:
    return Place(limited, template, tmp_path)


def flip(file: Path, dice: random.Random, place: Place) -> None:
    data = bytearray(file.read_bytes())
    used = len(data.rstrip(b"\0")) or len(data)
    for _ in range(3):
        data[dice.randrange(used)] ^= 1 << dice.randrange(8)
    file.write_bytes(data)


def fill(file: Path, dice: random.Random, place: Place) -> None:
    data = file.read_bytes()
    used = max(len(data.rstrip(b"\0")), 64)
    kind = dice.choice([b"\xff", b"\x7f", b"\x00", None])
    noise = dice.randbytes(used) if kind is None else kind * used
    file.write_bytes(noise[: len(data)] + data[used:])


def cut(file: Path, dice: random.Random, place: Place) -> None:
    os.truncate(file, dice.randrange(file.stat().st_size))


def grow(file: Path, dice: random.Random, place: Place) -> None:
    os.truncate(file, 1 << 40)


def remove(file: Path, dice: random.Random, place: Place) -> None:
    file.unlink()


def make_pipe(file: Path, dice: random.Random, place: Place) -> None:
    file.unlink()
    os.mkfifo(file)


def make_socket(file: Path, dice: random.Random, place: Place) -> None:
    file.unlink()
    with socket.socket(socket.AF_UNIX) as one:
        above = os.open(file.parent, os.O_RDONLY)
        try:
            one.bind(f"/proc/self/fd/{above}/{file.name}")  # a socket's path is short
        finally:
            os.close(above)


def make_folder(file: Path, dice: random.Random, place: Place) -> None:
    file.unlink()
    file.mkdir()


def make_link(file: Path, dice: random.Random, place: Place) -> None:
    file.unlink()
    file.symlink_to(place.secret)


def make_loop(file: Path, dice: random.Random, place: Place) -> None:
    file.unlink()
    file.symlink_to(file)


Change = Callable[[Path, random.Random, Place], None]
IN_PLACE: list[Change] = [flip, fill, cut, grow]
INSTEAD: list[Change] = [remove, make_pipe, make_socket, make_folder, make_link, make_loop]


def files_of(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file())


NASTY: list[Any] = [
    *(None, True, -1, 0, 0.5, 1e308, 2**31, 2**40, 2**62, 2**63, 2**64, 10**400),
    *("", "x", "\x1b[31mred\x07\u202e", "../../../etc", "/etc/passwd", "\ud800", "é" * 9000),
    *([], {}, [-1], [0.5], [2**40], [1] * 70, [2**62, 0], [["x"]], {"\x1b[2J": "\x1b[2J"}),
    json.loads("[" * 150 + "]" * 150),
    json.loads("[" * 900 + "]" * 900),
]


def places_in(told: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand in a document, each as the keys that lead to it."""
    inside = told.items() if isinstance(told, dict) else enumerate(told)
    for key, value in inside:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places_in(value, (*above, key))


def catalogue_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "rank0/catalog/c.0").read_bytes().rstrip(b"\0").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "check"} for line in lines]


def write_catalogue(run: Path, entries: list[dict[str, Any]]) -> None:
    """The entries as sound lines, each with its checksum: whoever makes a run can do that too."""
    data = b"".join(map(encode, entries))
    (run / "rank0/catalog/c.0").write_bytes(data[: 1 << 16].ljust(1 << 16, b"\0"))


def put(told: Any, where: tuple[Any, ...], value: Any) -> None:
    for key in where[:-1]:
        told = told[key]
    told[where[-1]] = value


@pytest.mark.parametrize("change", [*IN_PLACE, *INSTEAD], ids=lambda change: change.__name__)
def test_whatever_becomes_of_a_file_each_command_answers_in_words(
    place: Place, change: Change
) -> None:
    dice = random.Random(change.__name__)
    for name in [path.relative_to(place.run) for path in files_of(place.run)]:
        file = place.run / name
        if change is cut and not file.stat().st_size:
            continue
        change(file, dice, place)
        place.check(f"{change.__name__} {name}")
        place.mend()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_whatever_a_catalogue_says_with_a_good_checksum_each_command_answers_in_words(
    place: Place, data: st.DataObject
) -> None:
    entries = catalogue_of(place.run)
    number = data.draw(st.integers(0, len(entries) - 1))
    where = data.draw(st.sampled_from(list(places_in(entries[number]))))
    value = data.draw(st.sampled_from(NASTY))
    put(entries[number], where, value)
    write_catalogue(place.run, entries)
    place.check(f"{entries[number]!r:.200}")
    place.mend()


RAW = "\x1b]0;pwned\x07\x1b[2J\u202e\r"
"""What would rename a terminal, clear it, reverse text and go back to the start of the line."""
TEXTS = [
    *(("series", key) for key in ("name", "kind", "mode", "path")),
    ("variant", "dtype"),
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
def test_no_text_of_a_run_reaches_the_terminal_raw(place: Place, where: tuple[Any, ...]) -> None:
    entries = catalogue_of(place.run)
    for entry in entries:
        if where[0] in entry and where[1] in entry:
            put(entry, where[1:], RAW)
    write_catalogue(place.run, entries)
    for call in ASKED:
        place.told(f"{where}", *call)
