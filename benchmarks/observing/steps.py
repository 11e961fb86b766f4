"""Observed steps against unobserved steps, and against steps with hooks alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anchorlib
from anchorlib.modes import All, EveryN, ModeSpec, Summary
from benchmarks.figures import Figure
from benchmarks.observing.hooks import HandSaved, hook_emptily
from benchmarks.observing.models import TRAININGS, Training
from benchmarks.observing.targets import BESIDE_EMPTY, BESIDE_SAVED, PLAIN, STEP_CLOCKS, cell
from benchmarks.observing.turns import Arm, Turn, over, taken_in_turns

__all__ = ["ROWS", "Row", "steps_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """A training, what of it is observed, and how many steps are a turn.

    tensors: None for the default selection.
    by_hand: beside hooks with torch.save as well.
    """

    training: str
    steps: int
    tensors: str | None = None
    mode: ModeSpec = All
    words: str = ""
    by_hand: bool = False

    @property
    def name(self) -> str:
        """The row's name in the table."""
        selection = "default selection" if self.tensors is None else f'"{self.tensors}"'
        return f"{self.training}, {self.words or selection}"


# A turn's values fit the queue, and all turns' what was touched before: a row's files are removed
# behind it, but not sooner.
ROWS = (
    Row("tiny", 40),
    Row("tiny", 20, "*"),
    Row("tf", 6),
    Row("tf", 2, "*"),
    Row("tf", 4, "*", Summary, '"*", Summary'),
    Row("mlp", 40),
    Row("mlp", 20, "*"),
    Row("unet", 4, by_hand=True),
    Row("unet", 2, "*"),
    Row("wide", 20, None, EveryN(1_000_000, unit="step"), "EveryN, not selected"),
)


def steps_of(training: str) -> Callable[[Path, int], Iterator[Figure]]:
    """The rows of one training."""

    def figures(folder: Path, rounds: int) -> Iterator[Figure]:
        for number, row in enumerate(row for row in ROWS if row.training == training):
            yield from of_row(row, folder / f"{training}{number}", rounds)

    return figures


def of_row(row: Row, folder: Path, rounds: int) -> Iterator[Figure]:
    """Measure one row of each table, and remove its files."""
    folder.mkdir()
    make = TRAININGS[row.training]
    observed, plain, empty = make(), make(), make()
    hook_emptily(empty, everything=row.tensors == "*")
    arms = {PLAIN: stepping(plain, row.steps), BESIDE_EMPTY: stepping(empty, row.steps)}
    if row.by_hand:
        by_hand = make()
        HandSaved(by_hand, folder / "saved")
        arms[BESIDE_SAVED] = stepping(by_hand, row.steps)
    with anchorlib.start("run", store=folder / "store", mode=row.mode) as session:
        session.watch(observed.model, tensors=row.tensors, optimizer=observed.optimizer)
        for _ in range(3):
            observed.step()
        weight = step_weight(session, observed)
        arms["observed"] = Arm(repeated(observed, row.steps), session.flush)
        turns = taken_in_turns(arms, rounds)
    shutil.rmtree(folder)
    cpu = 1e3 * min(turn.trainer for turn in turns[PLAIN]) / row.steps
    yield from cells(f"{row.name}: {weight} in {cpu:.3g} ms", turns)


def cells(what: str, turns: dict[str, list[Turn]]) -> Iterator[Figure]:
    """The observed steps against each of the others."""
    for base in (name for name in turns if name != "observed"):
        for clock, column in STEP_CLOCKS.items():
            yield cell(base, what, column, over(turns["observed"], turns[base], clock))


def step_weight(session: anchorlib.Session, training: Training) -> str:
    """What one step records."""
    session.flush()
    before = session.counters
    training.step()
    session.flush()
    after = session.counters
    records, nbytes = after.records - before.records, after.bytes - before.bytes
    return f"{records} records, {nbytes / 1e6:.2f} MB"


def stepping(training: Training, steps: int) -> Arm:
    """An arm of `steps` steps without anything to store."""
    return Arm(repeated(training, steps))


def repeated(training: Training, steps: int) -> Callable[[], None]:
    """So many steps."""

    def work() -> None:
        for _ in range(steps):
            training.step()

    return work
