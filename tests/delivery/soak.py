"""Many ranks that come, go, die and resume against one collector, which must not grow.

    python -m tests.delivery.soak [--minutes 15] [--ranks 64] [--seed 0]

Groups of ranks, a process each, write run after run: a run is of some lives, each of which ends by
itself or by kill -9, and goes on as the next attempt; the last one brings the rest. Then the run is
compared with what its sinks had taken, and removed through the collector. The collector has limits
that its clients run into, and beside all this its access file is written anew (rates that change, a
right that is taken away for a moment), and it gets SIGHUPs. The laws: nothing is lost, doubled,
wrong or out of order; memory, descriptors and threads of the collector stay what they were when it
was warm. Prints a table; ends with 1 where a law is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anchor_server import issue_token
from anchorlib.errors import AnchorError
from anchorlib.wire import Credentials, KeeperClient
from tests.delivery.chaos import FAULTS, Outcome
from tests.delivery.lines import spools
from tests.delivery.lives import Marks, Order
from tests.delivery.soaking import CLOSE_SECONDS, RANK, RUN
from tests.delivery.vitals import Vitals, Watch
from tests.server.pushing import stored

TEAMS = ("a", "b", "c")
RANKS_A_GROUP = 8
GROWTH = 1.2  # that is allowed once the collector is warm
SPARE_FILES = 16  # that may be open at the end and were not at the beginning
_WARM = 0.4  # of the time
_FEWEST = 40  # samples of which a growth says anything
_RATES = ("300kB", "2MB", "20MB")
_END_SECONDS = 120.0  # that the last life of a run has beyond its own time


class Site:
    """The collector, as a process of its own, with an access file for three teams and a keeper."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.store = folder / "store"
        self.spools = folder / "spools"
        self.file = folder / "access.toml"
        rights = ["read", "write"]
        self.tokens = {team: issue_token(self.file, team, rights, [f"{team}-*"]) for team in TEAMS}
        self.keeper = issue_token(self.file, "keeper", ["read", "delete"], ["*"])
        self._text = self.file.read_text()
        self.say(_RATES[-1])
        command = [sys.executable, "-m", "anchor_cli", "serve", "--store", str(self.store)]
        command += ["--bind", "127.0.0.1:0", "--access", str(self.file), "--json"]
        command += ["--max-streams", str(max(4, ranks * 3 // 4)), "--max-rate", "40MB"]
        command += ["--idle-timeout", "3s", "--max-run-inodes", "20000"]
        command += ["--log-format", "json"]
        with (folder / "collector.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["address"]
        self.log = folder / "collector.log"

    def say(self, rate: str, *, without: str = "") -> None:
        """Write the access file anew: each team's rate, and one that may not write just now."""
        text = self._text.replace("[[token]]", f'[[token]]\nmax_rate = "{rate}"')
        text = text.replace(f'name = "{TEAMS[0]}"', f'name = "{TEAMS[0]}"\nmax_runs = 2')
        if without:
            head, name, tail = text.partition(f'name = "{without}"')
            text = head + name + tail.replace('"read", "write"', '"read"', 1)
        self.file.write_text(text)

    def remove(self, run: str) -> None:
        credentials = Credentials(self.keeper)
        client = KeeperClient(f"grpc://{self.address}", credentials)
        try:
            client.remove(run)
        finally:
            client.close()

    def refusals(self) -> Counter[str]:
        """How streams were ended, by kind, as the log has it."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return Counter(f"refused: {one['kind']}" for one in lines if "kind" in one)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class Group:
    """Some ranks of one run after another, below a thread of its own."""

    def __init__(self, site: Site, number: int, ranks: int, seed: int, outcome: Outcome) -> None:
        self._site = site
        self._number = number
        self._ranks = ranks
        self._chance = random.Random(f"group {seed} {number}")
        self._team = TEAMS[number % len(TEAMS)]
        self._outcome = outcome
        self._folder = site.spools.parent / f"group{number}"
        self._lives = 0
        self.told: list[str] = []

    def run(self, until: float, longest: float) -> None:
        """Run after run until that time; a life takes `longest` seconds at most."""
        number = 0
        while time.monotonic() < until:
            number += 1
            self._record(f"{self._team}-{self._number}-{number}", until, longest)

    def _record(self, run: str, until: float, longest: float) -> None:
        marks: list[list[Marks]] = [[] for _ in range(self._ranks)]
        for _ in range(self._chance.randrange(0, 3)):
            if time.monotonic() < until:
                self._live(run, marks, self._chance.uniform(0.2, 1) * longest, dies=True)
        self._live(run, marks, self._chance.uniform(0.1, 0.5) * longest, dies=False)
        for _ in range(5):
            if not self._left(run):
                break
            self._count("deliveries of what was left")
            self._live(run, marks, 0.0, dies=False)
        else:
            self._fault(f"{run}: a spool is not delivered")
        self._judge(run, marks)
        try:
            self._site.remove(run)
            self._count("runs removed")
        except AnchorError as error:
            self._fault(f"{run} was not removed: {error}")

    def _live(self, run: str, marks: list[list[Marks]], seconds: float, *, dies: bool) -> None:
        folders = [self._order(at, marks[at], seconds) for at in range(self._ranks)]
        told = {
            RUN: run,
            RANK: "0",
            "ANCHOR_SPOOL": str(self._site.spools / self._folder.name),
            "ANCHOR_TOKEN": self._site.tokens[self._team],
        }
        command = [sys.executable, "-m", "tests.delivery.soaking", *map(str, folders)]
        with (self._folder / "errors").open("ab") as errors:
            process = subprocess.Popen(command, stderr=errors, env=os.environ | told)
        ends = self._chance.uniform(0, seconds) + 1 if dies else seconds + 2 * CLOSE_SECONDS
        try:
            code = process.wait(ends if dies else ends + _END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
            self._count("processes killed")
            if not dies:
                self._fault(f"{run}: a life does not end")
        if code not in (0, -signal.SIGKILL):
            self._fault(f"{run}: a life ended with {code}")
        self._count("lives of ranks", self._ranks)

    def _order(self, rank: int, before: list[Marks], seconds: float) -> Path:
        self._lives += 1
        folder = self._folder / f"life{self._lives}"
        folder.mkdir(parents=True)
        begun = [one.numbers("begun") for one in before]
        first = max((max(one) + 1 for one in begun if one), default=0)
        order = Order(
            store=f"grpc://{self._site.address}",
            place="thread",
            first=first,
            last=first + int(seconds * self._chance.uniform(5, 15)),
            seed=self._chance.randrange(1 << 30),
            resume=bool(before),
            queue_bytes=1 << 20,
            durability="power" if self._chance.random() < 0.1 else "process",
            seconds=seconds,
        )
        order.write(folder)
        before.append(Marks(folder))
        return folder

    def _left(self, run: str) -> list[Path]:
        place = self._site.spools / self._folder.name
        return [one for one in spools(place) if one.name.startswith(f"{run}.")]

    def _judge(self, run: str, marks: list[list[Marks]]) -> None:
        for rank, lives in enumerate(marks):
            owed = set[int]().union(*(one.numbers("put") for one in lives))
            begun = set[int]().union(*(one.numbers("begun") for one in lives))
            there = self._site.store / f"{run}.zarr" / f"rank{rank}"
            found = stored(self._site.store, run, rank) if owed or there.exists() else []
            with _ONE:
                before = [getattr(self._outcome, name) for name in FAULTS]
                self._outcome.judge(owed, begun, found, late=self._was_late(run, rank))
                if before != [getattr(self._outcome, name) for name in FAULTS]:
                    self.told.append(f"{run} rank {rank}: {len(owed)} owed, {len(found)} stored")

    def _was_late(self, run: str, rank: int) -> bool:
        """Whether an attempt at a rank said that it could not deliver the one before it."""
        lines = (self._folder / "errors").read_text(errors="replace").splitlines()
        spool = f"/{run}.rank{rank}."
        return any(spool in line and "was not delivered" in line for line in lines)

    def _count(self, event: str, count: int = 1) -> None:
        with _ONE:
            self._outcome.events[event] += count

    def _fault(self, told: str) -> None:
        self.told.append(told)
        with _ONE:
            self._outcome.unsound += 1


_ONE = threading.Lock()  # of the outcome, which all groups share


class Operator:
    """Writes the access file anew, and sends SIGHUPs, until the context is left."""

    def __init__(self, site: Site, seed: int, pause: float) -> None:
        self.events: Counter[str] = Counter()
        self._site = site
        self._chance = random.Random(f"operator {seed}")
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._operate, daemon=True)

    def __enter__(self) -> Operator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._site.say(_RATES[-1])
        self._site.process.send_signal(signal.SIGHUP)

    def _operate(self) -> None:
        while not self._over.wait(self._chance.uniform(0.2, 1.8) * self._pause):
            what = self._chance.choice(["rate", "rate", "hangup", "revoke", "breaks"])
            self.events[f"access: {what}"] += 1
            if what == "rate":
                self._site.say(self._chance.choice(_RATES))
            elif what == "revoke":
                self._site.say(_RATES[-1], without=self._chance.choice(TEAMS))
                self._hang_up()
                self._over.wait(self._pause / 4)
                self._site.say(_RATES[-1])
            elif what == "breaks":
                self._site.file.write_text("[[token]")
                self._over.wait(self._pause / 4)
                self._site.say(_RATES[-1])
            self._hang_up()

    def _hang_up(self) -> None:
        self._site.process.send_signal(signal.SIGHUP)


class Soak:
    """One soak, below `folder`."""

    def __init__(self, folder: Path, minutes: float, ranks: int, seed: int) -> None:
        self.outcome = Outcome(seed, "collector")
        self._seconds = minutes * 60
        self._site = Site(folder, ranks)
        sizes = [min(RANKS_A_GROUP, ranks - at) for at in range(0, ranks, RANKS_A_GROUP)]
        self._groups = [
            Group(self._site, number, size, seed, self.outcome) for number, size in enumerate(sizes)
        ]
        self._operator = Operator(self._site, seed, pause=max(1.0, self._seconds / 60))
        self._watch = Watch(self._site.process.pid, max(0.2, self._seconds / 300))
        self._last = self._watch.first

    def run(self) -> bool:
        """Whether all laws hold."""
        until = time.monotonic() + self._seconds
        longest = min(30.0, self._seconds / 5)
        with self._watch, self._operator, ThreadPoolExecutor(len(self._groups)) as threads:
            list(threads.map(lambda group: group.run(until, longest), self._groups))
        self._last = self._settled()
        if code := self._site.end():
            self.outcome.unsound += 1
            self._groups[0].told.append(f"the collector ended with {code}")
        self.outcome.events += self._operator.events + self._site.refusals()
        return self._say()

    def _settled(self) -> Vitals:
        """The collector's vitals once the last connections are gone."""
        for _ in range(100):
            last = Vitals.of(self._site.process.pid)
            if last.descriptors <= self._watch.first.descriptors + SPARE_FILES:
                break
            time.sleep(0.1)
        return last

    def laws(self) -> list[tuple[str, str, str, bool]]:
        """For each law its name, the figure, the limit, and whether the law holds."""
        outcome, first, last = self.outcome, self._watch.first, self._last
        laws = [
            (name, str(getattr(outcome, name)), "0", not getattr(outcome, name)) for name in FAULTS
        ]
        laws.append(("records stored", str(outcome.stored), "some", outcome.stored > 0))
        most = first.descriptors + SPARE_FILES
        figure = f"{first.descriptors} at first, {last.descriptors} at last"
        laws.append(("descriptors", figure, f"at most {most}", last.descriptors <= most))
        for what in ("memory", "descriptors", "threads"):
            growth = self._watch.growth(what, _WARM)
            figures = [getattr(one, what) for one in self._watch.seen]
            cut = int(len(figures) * _WARM)
            told = [max(figures[:cut], default=0), max(figures[cut:], default=0)]
            scale, unit = (1 << 20, " MiB") if what == "memory" else (1, "")
            figure = f"{growth:.2f} ({told[0] // scale}{unit}, then {told[1] // scale}{unit})"
            judged = len(figures) >= _FEWEST and self._seconds >= 300
            limit = f"at most {GROWTH}" if judged else "not judged"
            laws.append((f"most {what} when warm", figure, limit, not judged or growth <= GROWTH))
        return laws

    def _say(self) -> bool:
        laws = self.laws()
        for what, figure, limit, holds in laws:
            print(f"{what:26} {figure:36} {limit:14} {'holds' if holds else 'BROKEN'}")
        events = sorted(self.outcome.events.items())
        print(
            f"{self.outcome.owed} owed; " + ", ".join(f"{count} {name}" for name, count in events)
        )
        for group in self._groups:
            for line in group.told:
                print(line)
        return all(holds for *_, holds in laws)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak; return 1 if a law is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.delivery.soak",
        description="Many ranks that come, go, die and resume against one collector. Ends with 1 "
        "where a record was lost, doubled or changed, or the collector grew.",
    )
    parser.add_argument("--minutes", type=float, default=15, help="how long (default: 15)")
    parser.add_argument("--ranks", type=int, default=64, help="trainers at once (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="plans the same events again (0)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), options.minutes, options.ranks, options.seed)
        return 0 if soak.run() else 1


if __name__ == "__main__":
    sys.exit(main())
