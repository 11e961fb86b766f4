"""Trainers, recorders and collectors that are killed at any moment, on a line that breaks.

    python -m tests.delivery.chaos [--seeds 20] [--records 4000] [--first 0]

Each seed is two runs, one to a collector and one to a directory: trainers that die and come back as
the next attempt; recorder processes, or threads, that drain them, and die at random or at a
failpoint; a collector that is killed and started again; a proxy before it that cuts, swallows,
slows, and flips bits in both directions. At the end what the dead left is pushed, and the store is
compared with every record whose `anchor` had returned before its trainer died (where the recorder
died with it, or was a thread of it: with what the sink had taken): lost, doubled, wrong, out of
order, unsound. A seed plans the same events again.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from anchorlib.errors import AnchorError, RunNotFoundError
from anchorlib.store import LocalLocation, RankAudit, RankReader
from anchorlib.store.disk.lock import is_locked, lock_path
from tests.delivery.lines import Proxy, free_port, numbered, push, spools, told
from tests.delivery.lives import DEATHS, Life, Order
from tests.delivery.mortal import FAILPOINTS, RING_POINTS
from tests.server.pushing import stored

_READY_SECONDS = 60.0
_END_SECONDS = 60.0  # that recorders of a dead trainer have
_QUEUES = (1 << 14, 1 << 17, 256 << 20)

_COLLECTOR = (
    "import sys; from anchor_server import Collector\n"
    "c = Collector(sys.argv[1], sys.argv[2]); c.start(); print('up', flush=True); c.wait()"
)


FAULTS = ("lost", "doubled", "wrong", "unordered", "unsound")


@dataclass(slots=True)
class Outcome:
    """What one run of one seed came to.

    owed: the number of records that had to be stored.
    unsound: rows and lines that do not fit their checksums, runs that nobody recorded, processes
        that ended for no reason, or never.
    """

    seed: int
    to: str
    owed: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    unordered: int = 0
    unsound: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def judge(
        self,
        owed: set[int],
        begun: set[int],
        found: Sequence[tuple[str, int, bytes]],
        *,
        late: bool = False,
    ) -> None:
        """Compare the records of a rank in a store with those it must have and those it may have.

        late: whether an earlier attempt was refused and arrived only after a later one.
        """
        steps = [step for _, step, _ in found]
        counts = Counter(steps)
        self.owed += len(owed)
        self.stored += len(found)
        self.lost += len(owed - counts.keys())
        self.doubled += sum(count - 1 for count in counts.values())
        self.wrong += sum(one != told(numbered(one[1])) for one in found)
        self.wrong += len(counts.keys() - begun)
        turns = sum(after < before for before, after in pairwise(steps))
        if late:
            self.events["turns of order behind a refusal"] += turns
        else:
            self.unordered += turns

    @property
    def good(self) -> bool:
        return not any(getattr(self, name) for name in FAULTS)

    def __str__(self) -> str:
        events = _listed(self.events)
        return (
            f"seed {self.seed} to a {self.to}: {self.owed} owed, {self.stored} stored, "
            f"{self.lost} lost, {self.doubled} doubled, {self.wrong} wrong, "
            f"{self.unordered} unordered, {self.unsound} unsound ({events})"
        )


def _listed(events: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(events.items()) if count)


class Chaos:
    """One run of one seed, below `folder`.

    patience: seconds that the last trainer has; then it is killed too, and what it left is pushed.
    remote: whether to a collector; else to a directory.
    """

    def __init__(
        self, seed: int, records: int, folder: Path, patience: float = 30, *, remote: bool = True
    ) -> None:
        self.patience = patience
        to = "collector" if remote else "directory"
        self.plan = random.Random(f"plan {seed} {to}")  # the same again, however long things take
        self.chance = random.Random(f"line {seed} {to}")
        self.seed = seed
        self.records = records
        self.remote = remote
        self.folder = folder
        self.store = folder / "store"
        self.place = folder / "spools"
        self.told: list[str] = []
        self.outcome = Outcome(seed, to)
        self.lives: list[Life] = []
        self.proxy = Proxy(free_port(), random.Random(f"bits {seed}"))
        self.collector: subprocess.Popen[bytes] | None = None

    def run(self) -> Outcome:
        with self.proxy:
            try:
                if self.remote and self.plan.random() < 0.8:
                    self._start_collector()
                self._train()
            finally:
                if self.remote:
                    self.outcome.events["bits flipped"] = self.proxy.flipped
                self._kill_collector()
                for life in self.lives:
                    life.kill_recorder()  # what hung is counted already
        self._push()
        return self._judge()

    def _push(self) -> None:
        for folder in spools(self.place) if self.place.exists() else []:
            if not folder.exists():
                continue  # it was delivered before a younger one
            try:
                push(folder, self.store)
            except RunNotFoundError:
                continue  # it was empty, and swept away
            except AnchorError as refused:
                self.told.append(f"push of {folder}: {refused}")
            self.outcome.events["pushes"] += 1

    # -- what trainers do

    def _train(self) -> None:
        """Lives that end early, and a last one that brings the rest of the records."""
        for _ in range(self.plan.randrange(0, 4)):
            self._live(self.plan.randrange(1, self.records), dies=True)
        self._live(self.records, dies=False)

    def _live(self, most: int, *, dies: bool) -> None:
        """Run one trainer, from its first record until all its processes have ended."""
        order = self._order(most, dies=dies)
        folder = self.folder / "lives" / str(len(self.lives))
        life = Life(folder, order, {"ANCHOR_SPOOL": str(self.place)})
        self.lives.append(life)
        self._count(f"{order.place} recorders")
        chance = random.Random(order.seed)  # the plan stays the same, however this life ends
        try:
            self._await_begin(life, chance, dies=dies)
            self._let_live(life, chance.uniform(0, order.seconds) if dies else self.patience)
        finally:
            self._end(life, chance)

    def _order(self, most: int, *, dies: bool) -> Order:
        plan, before = self.plan, [life.marks.numbers("begun") for life in self.lives]
        first = max((max(begun) + 1 for begun in before if begun), default=0)
        last = first + max(1, min(most, self.records - sum(map(len, before))))
        place = "process" if plan.random() < 0.75 else "thread"
        share, death = plan.random(), plan.choice(list(DEATHS))
        inside = dies and plan.random() < 0.3
        return Order(
            store=f"grpc://{self.proxy.address}" if self.remote else str(self.store),
            place=place,
            first=first,
            last=last,
            seed=plan.randrange(1 << 30),
            resume=bool(self.lives),
            queue_bytes=plan.choice(_QUEUES),
            durability="power" if plan.random() < 0.3 else "process",
            seconds=plan.uniform(0.5, 4),
            death=death if inside else "",
            dies_at=first + int(share * (last - first)) if inside else -1,
            point=self._point(place, dies=dies),
        )

    def _point(self, place: str, *, dies: bool) -> str:
        """A failpoint for a recorder process; a recorder thread takes the trainer with it."""
        process = place == "process"
        names = (FAILPOINTS if self.remote else ()) + (RING_POINTS if process else ())
        wanted = self.plan.random() < 0.6 and (dies or process)
        if not (names and wanted):
            return ""
        name, count = self.plan.choice(names), self.plan.randrange(1, 12)
        self._count(f"{'trainers' if place == 'thread' else 'recorders'} at {name}")
        return f"{name}:{count}"

    # -- what is done to them

    def _await_begin(self, life: Life, chance: random.Random, *, dies: bool) -> None:
        """Wait until the trainer anchors; some trainers are killed before."""
        early = dies and chance.random() < 0.1
        ends = time.monotonic() + (chance.uniform(0, 5) if early else _READY_SECONDS)
        while not life.has_begun and life.trainer.poll() is None and time.monotonic() < ends:
            time.sleep(0.01)

    def _let_live(self, life: Life, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while life.trainer.poll() is None and (left := ends - time.monotonic()) > 0:
            self._disturb(left)
            if self.chance.random() < 0.08 and life.kill_recorder():
                self._count("recorders killed")
            if self.remote and seconds == self.patience:
                self._start_collector()

    def _end(self, life: Life, chance: random.Random) -> None:
        if life.trainer.poll() is None:
            life.trainer.send_signal(chance.choice([signal.SIGKILL, signal.SIGSEGV]))
            self._count("trainers killed")
        code = life.trainer.wait()
        self._count("trainers dead" if code else "trainers closed")
        if chance.random() < 0.1 and life.kill_recorder():
            self._count("recorders killed behind their trainers")
        ends = time.monotonic() + _END_SECONDS
        while life.recorders() or self._is_held():
            if time.monotonic() > ends:
                self._fault("a recorder does not end, or the rank is locked by nobody")
                break
            self._disturb(0.25)
        self.proxy.mode, self.proxy.flips = "pass", 0
        self.outcome.events["ended by gRPC"] += life.aborts
        self.outcome.events["dead trainers that owe all"] += code != 0 and life.has_drained
        for fault in life.faults():
            self._fault(fault)

    def _is_held(self) -> bool:
        """Whether a process that is about to end still holds the rank's lock."""
        return not self.remote and is_locked(lock_path(self.store, "run1", 0))

    def _disturb(self, longest: float) -> None:
        pause = min(longest, self.chance.uniform(0.02, 0.25))
        if self.remote:
            self._disturb_line(pause)
        else:
            time.sleep(pause)

    def _disturb_line(self, pause: float) -> None:
        proxy = self.proxy
        what = self.chance.choice(
            ["cut", "blackhole", "slow", "kill", "flips", "flips", "rest", "rest", "rest"]
        )
        if what == "cut":
            proxy.cut()
        elif what in ("blackhole", "slow"):
            proxy.mode = what
        elif what == "flips":
            proxy.flips += self.chance.randrange(1, 6)
        elif what == "kill":
            if self.collector is None:
                self._start_collector()
            else:
                self._kill_collector()
        self._count("collectors killed or started" if what == "kill" else what)
        time.sleep(pause)
        if proxy.mode == "blackhole":
            proxy.cut()  # what was swallowed would be missed by both ends for a keepalive's time
        proxy.mode = "pass"

    def _start_collector(self) -> None:
        if self.collector is None:
            address = f"127.0.0.1:{self.proxy.to}"
            command = [sys.executable, "-c", _COLLECTOR, str(self.store), address]
            self.collector = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert self.collector.stdout is not None
            self.collector.stdout.readline()

    def _kill_collector(self) -> None:
        if self.collector is not None:
            self.collector.send_signal(signal.SIGKILL)
            self.collector.wait()
            if self.collector.stdout is not None:
                self.collector.stdout.close()
            self.collector = None

    # -- what came of it

    def story(self) -> str:
        """What is known of a run that came to no good end."""
        lives = [f"life {at}: {one.order}\n{one.errors}" for at, one in enumerate(self.lives)]
        return "\n".join([*self.told, *lives])

    def _count(self, event: str) -> None:
        self.outcome.events[event] += 1

    def _fault(self, told: str) -> None:
        self.outcome.unsound += 1
        self.told.append(f"life {len(self.lives) - 1}: {told}")

    def _judge(self) -> Outcome:
        """Judge: every attempt begins where its trainer began; each owed record is there once."""
        outcome = self.outcome
        owed = set[int]().union(*(life.owed() for life in self.lives))
        begun = set[int]().union(*(life.marks.numbers("begun") for life in self.lives))
        there = owed or (self.store / "run1.zarr").exists()
        found = stored(self.store) if there else []
        outcome.judge(owed, begun, found)
        if found:
            run = LocalLocation(self.store / "run1.zarr")
            rank = RankReader(run, 0)
            outcome.events["attempts"] = len(rank.catalogue.attempts)
            audit = RankAudit(run, rank)
            rows = [audit.rows(*part) for part in audit.parts()]
            outcome.unsound += sum(len(part.bad) + len(part.labels) for part in rows)
            outcome.unsound += len(list(audit.faults())) + len(list(self.store.glob("*.zarr"))) - 1
        return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; return 1 if one of them lost, doubled or changed a record."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.delivery.chaos",
        description="Trainers, recorders and collectors that are killed at any moment, on a line "
        "that breaks. Ends with 1 where a record was lost, doubled or changed.",
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many plans (default: 20)")
    parser.add_argument("--records", type=int, default=4000, help="of each run (default: 4000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    options = parser.parse_args(arguments)
    outcomes = []
    for seed in range(options.first, options.first + options.seeds):
        for remote in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                chaos = Chaos(seed, options.records, Path(folder), remote=remote)
                outcomes.append(chaos.run())
                print(outcomes[-1], flush=True)
                if not outcomes[-1].good:
                    print(chaos.story(), flush=True)
    total = {
        name: sum(getattr(one, name) for one in outcomes) for name in ("owed", "stored", *FAULTS)
    }
    print(f"{options.seeds} seeds: {total}")
    events = sum((one.events for one in outcomes), Counter[str]())
    print(_listed(events))
    return 0 if all(one.good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
