"""Trainers and collectors that are killed at any moment, on a line that breaks.

    python -m tests.delivery.chaos [--seeds 20] [--records 4000] [--first 0]

Each seed is one run: a trainer that dies and comes back as the next attempt, at random or at a
failpoint of its spool; a collector that is killed and started again; a proxy between them that
cuts, swallows, slows, and flips bits in both directions. At the end what the dead left is pushed,
and the store is compared with what every `put` had taken: lost, doubled, wrong, out of order,
unsound. A seed prints the same events again.
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
from pathlib import Path

from anchorlib.errors import AnchorError, RunNotFoundError
from anchorlib.store import LocalLocation, RankAudit, RankReader
from tests.delivery.lines import Proxy, free_port, numbered, push, spools, told
from tests.delivery.trainer import FAILPOINTS
from tests.server.pushing import stored

_CLEAR = 20  # more than one put takes

_COLLECTOR = (
    "import sys; from anchor_server import Collector\n"
    "c = Collector(sys.argv[1], sys.argv[2]); c.start(); print('up', flush=True); c.wait()"
)


FAULTS = ("lost", "doubled", "wrong", "unordered", "unsound")


@dataclass(slots=True)
class Outcome:
    """What one seed came to.

    unsound: rows and lines that do not fit their checksums, and runs that nobody recorded.
    """

    seed: int
    put: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    unordered: int = 0
    unsound: int = 0
    events: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        return not any(getattr(self, name) for name in FAULTS)

    def __str__(self) -> str:
        events = ", ".join(f"{count} {name}" for name, count in sorted(self.events.items()))
        return (
            f"seed {self.seed}: {self.put} put, {self.stored} stored, {self.lost} lost, "
            f"{self.doubled} doubled, {self.wrong} wrong, {self.unordered} unordered, "
            f"{self.unsound} unsound ({events})"
        )


class Chaos:
    """One seed's run below `folder`.

    patience: seconds that the last trainer has; then it is killed too, and what it left is pushed.
    """

    def __init__(self, seed: int, records: int, folder: Path, patience: float = 60) -> None:
        self.patience = patience
        self.plan = random.Random(f"plan {seed}")  # the same again, however long things take
        self.chance = random.Random(f"line {seed}")
        self.seed = seed
        self.records = records
        self.store = folder / "store"
        self.place = folder / "spools"
        self.log = folder / "log"
        self.errors = (folder / "errors").open("wb")
        self.outcome = Outcome(seed)
        self.port = free_port()
        self.collector: subprocess.Popen[bytes] | None = None

    def run(self) -> Outcome:
        with Proxy(self.port, random.Random(f"bits {self.seed}")) as proxy:
            try:
                if self.plan.random() < 0.8:
                    self._start_collector()
                self._train(proxy)
            finally:
                self.outcome.events["bits flipped"] = proxy.flipped
                self._kill_collector()
        for folder in spools(self.place) if self.place.exists() else []:
            if not folder.exists():
                continue  # it was delivered before a younger one
            try:
                push(folder, self.store)
            except RunNotFoundError:
                continue  # it was empty, and swept away
            except AnchorError as refused:
                self.errors.write(f"push of {folder}: {refused}\n".encode())
            self.outcome.events["pushes"] += 1
        return self._judge()

    def _train(self, proxy: Proxy) -> None:
        """Lives that end early, and a last one that brings the rest of the records."""
        first = 0
        for _ in range(self.plan.randrange(0, 4)):
            point = []
            if self.plan.random() < 0.6:
                name = self.plan.choice(FAILPOINTS)
                point = [f"{name}:{self.plan.randrange(1, 12)}"]
                self.outcome.events[f"trainers at {name}"] += 1
            share = self.plan.randrange(1, self.records)
            left = self.records - len(self._put())
            self._live(proxy, first, first + min(share, left - 1), point, dies=True)
            # What a put that was cut short had begun may be there: the next life stays clear of it.
            first = max(self._put(), default=-1) + _CLEAR
        self._live(proxy, first, first + self.records - len(self._put()), (), dies=False)

    def _live(
        self, proxy: Proxy, first: int, last: int, point: Sequence[str], *, dies: bool
    ) -> None:
        """One trainer; records that a dead one did not put are not put again."""
        arguments = (proxy.address, self.place, self.log, first, last, self.plan.randrange(1 << 30))
        command = [sys.executable, "-m", "tests.delivery.trainer", *map(str, arguments)]
        trainer = subprocess.Popen(
            [*command, *point], stderr=self.errors, stdout=subprocess.DEVNULL
        )
        ends = time.monotonic() + (
            self.plan.uniform(0.3, 1.5) if dies and not point else self.patience
        )
        try:
            while trainer.poll() is None and time.monotonic() < ends:
                self._disturb(proxy)
                if not dies:
                    self._start_collector()
        finally:
            if trainer.poll() is None:
                trainer.send_signal(signal.SIGKILL)
                self.outcome.events["trainers killed"] += 1
            trainer.wait()
            proxy.mode, proxy.flips = "pass", 0

    def _disturb(self, proxy: Proxy) -> None:
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
        self.outcome.events[what] += 1
        time.sleep(self.chance.uniform(0.02, 0.25))
        if proxy.mode == "blackhole":
            proxy.cut()  # what was swallowed would be missed by both ends for a keepalive's time
        proxy.mode = "pass"

    def _start_collector(self) -> None:
        if self.collector is None:
            command = [sys.executable, "-c", _COLLECTOR, str(self.store), f"127.0.0.1:{self.port}"]
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

    def _judge(self) -> Outcome:
        """Every attempt begins where its trainer began; what `put` took of it is there."""
        outcome = self.outcome
        wanted = self._put()
        found = stored(self.store) if wanted or self.store.exists() else []
        steps = [step for _, step, _ in found]
        counts = Counter(steps)
        outcome.put, outcome.stored = len(wanted), len(found)
        outcome.lost = len(wanted - counts.keys())
        outcome.doubled = sum(count - 1 for count in counts.values())
        outcome.wrong = sum(one != told(numbered(one[1])) for one in found)
        self.errors.close()
        outcome.unordered = sum(after <= before for before, after in zip(steps, steps[1:]))  # noqa: B905, RUF007
        if found:
            run = LocalLocation(self.store / "run1.zarr")
            rank = RankReader(run, 0)
            outcome.events["attempts"] = len(rank.catalogue.attempts)
            audit = RankAudit(run, rank)
            rows = [audit.rows(*part) for part in audit.parts()]
            outcome.unsound = sum(len(part.bad) + len(part.labels) for part in rows)
            outcome.unsound += len(list(audit.faults())) + len(list(self.store.glob("*.zarr"))) - 1
        return outcome

    def _put(self) -> set[int]:
        """What `put` took of each trainer's records: the log counts up, anew with each trainer."""
        if not self.log.exists():
            return set()
        return {number for first, end in self._spans() for number in range(first, end)}

    def _spans(self) -> list[tuple[int, int]]:
        spans = []
        for line in self.log.read_text().split():
            first, end = map(int, line.split("-"))
            spans.append((first, end))
        return spans


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; 1 where one of them lost, doubled or changed a record."""
    parser = argparse.ArgumentParser(prog="python -m tests.delivery.chaos")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(arguments)
    outcomes = []
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(Chaos(seed, options.records, Path(folder)).run())
            print(outcomes[-1], flush=True)
            if not outcomes[-1].good:
                print((Path(folder) / "errors").read_text())
    total = {
        name: sum(getattr(one, name) for one in outcomes) for name in ("put", "stored", *FAULTS)
    }
    print(f"{len(outcomes)} seeds: {total}")
    return 0 if all(one.good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
