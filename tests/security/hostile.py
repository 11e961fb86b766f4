"""A run that somebody spoilt or made to do harm, beside a sound one."""

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

from anchorlib.block import block_of
from anchorlib.record import Edges, Gap, Parent
from anchorlib.store import Writer
from anchorlib.store.format import encode
from tests.cli.made import Outcome, make_run, record
from tests.security.limited import Limited

SECRET = b"root:x:0:0:root" * 40
PLAIN = np.arange(4, dtype=np.float32)


def records() -> list[Any]:
    """Of one tensor of one shape, one without values, and one of too many shapes for arrays."""
    found = [record("fc1", "grad", PLAIN + step, step=step) for step in range(3)]
    found += [record("act", "value", None, dropped=PLAIN, mode="summary", step=1)]
    found += [
        record("seq", "value", np.ones((size, 2), np.float16), step=size) for size in range(20)
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
        writer.write_block(block_of([record("fc1", "grad", PLAIN, step=7)]))
    return store / "bad.zarr"


class HostilePlace:
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

    def mend(self, file: Path | None = None) -> None:
        """Makes the run whole again, of which one file alone is spoilt where it is named."""
        if file is None:
            shutil.rmtree(self.run)
            shutil.copytree(self.template / "bad.zarr", self.run)
            return
        spoilt = self.run / file
        if spoilt.is_dir() and not spoilt.is_symlink():
            spoilt.rmdir()
        else:
            spoilt.unlink(missing_ok=True)
        shutil.copyfile(self.template / "bad.zarr" / file, spoilt)

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


# What may become of a file, each with the dice that say where.


def flip(file: Path, dice: random.Random, place: HostilePlace) -> None:
    data = bytearray(file.read_bytes())
    used = len(data.rstrip(b"\0")) or len(data)
    for _ in range(3):
        data[dice.randrange(used)] ^= 1 << dice.randrange(8)
    file.write_bytes(data)


def fill(file: Path, dice: random.Random, place: HostilePlace) -> None:
    data = file.read_bytes()
    used = max(len(data.rstrip(b"\0")), 64)
    kind = dice.choice([b"\xff", b"\x7f", b"\x00", None])
    noise = dice.randbytes(used) if kind is None else kind * used
    file.write_bytes(noise[: len(data)] + data[used:])


def cut(file: Path, dice: random.Random, place: HostilePlace) -> None:
    os.truncate(file, dice.randrange(file.stat().st_size + 1))


def grow(file: Path, dice: random.Random, place: HostilePlace) -> None:
    os.truncate(file, 1 << 40)


def remove(file: Path, dice: random.Random, place: HostilePlace) -> None:
    file.unlink()


def make_pipe(file: Path, dice: random.Random, place: HostilePlace) -> None:
    file.unlink()
    os.mkfifo(file)


def make_socket(file: Path, dice: random.Random, place: HostilePlace) -> None:
    file.unlink()
    with socket.socket(socket.AF_UNIX) as one:
        above = os.open(file.parent, os.O_RDONLY)
        try:
            one.bind(f"/proc/self/fd/{above}/{file.name}")  # a socket's path is short
        finally:
            os.close(above)


def make_folder(file: Path, dice: random.Random, place: HostilePlace) -> None:
    file.unlink()
    file.mkdir()


def make_link(file: Path, dice: random.Random, place: HostilePlace) -> None:
    file.unlink()
    file.symlink_to(place.secret)


def make_loop(file: Path, dice: random.Random, place: HostilePlace) -> None:
    file.unlink()
    file.symlink_to(file)


Change = Callable[[Path, random.Random, HostilePlace], None]
SPOILT: list[Change] = [flip, fill, cut]
STRANGE: list[Change] = [make_pipe, make_socket, make_folder, make_link, make_loop]


def files_of(run: Path) -> list[Path]:
    """Every file of a run."""
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
    """The lines of the catalogue, without their checksums."""
    lines = (run / "rank0/catalog/c.0").read_bytes().rstrip(b"\0").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "check"} for line in lines]


def write_catalogue(run: Path, entries: list[dict[str, Any]]) -> None:
    """The entries as sound lines, each with its checksum: whoever makes a run can do that too."""
    data = b"".join(map(encode, entries))
    (run / "rank0/catalog/c.0").write_bytes(data[: 1 << 16].ljust(1 << 16, b"\0"))


def put(told: Any, where: tuple[Any, ...], value: Any) -> None:
    """Replaces what stands at `where` in a document."""
    for key in where[:-1]:
        told = told[key]
    told[where[-1]] = value
