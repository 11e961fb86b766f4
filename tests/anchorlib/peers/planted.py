"""Faults planted into the norms of a job's ranks, and jobs without any: what is found of them.

    python -m tests.anchorlib.peers.planted

Limits were chosen with two thirds of the cases (by number); the last third is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from anchorlib.peers.grid import Grid, SeriesKey
from anchorlib.peers.norms import departures_of_norms
from anchorlib.peers.outlier import Departure

Array = np.ndarray
Draw = Callable[[np.random.Generator, int, int, int], Array]
RANKS, SERIES, STEPS = (8, 16, 64), 12, 40


class Rows:
    """The one thing that norms ask of a rank's reader: in which order its records were made."""

    def check_rows(self, rows: Array) -> None:
        """Every row is sound."""

    def cell(self, _name: str, row: int) -> int:
        """Rows are in order of execution."""
        return row


def grid(sizes: Array) -> Grid:
    """A grid of gradients with these root mean squares, (ranks, series, steps)."""
    ranks, series, steps = sizes.shape
    count = series * steps
    owner, step = np.repeat(np.arange(series), steps), np.tile(np.arange(steps), series)
    none = np.zeros((ranks, count), bool)
    return Grid(
        ranks=list(range(ranks)), last=[steps - 1] * ranks,
        readers=cast("Any", [Rows()] * ranks),
        series=[SeriesKey(f"w{n}", "pass_grad", "all", "train") for n in range(series)],
        owner=owner, step=step, pass_index=np.zeros(count, int), call=np.zeros(count, int),
        row=np.tile(step * series + owner, (ranks, 1)), digest=np.zeros((ranks, count), np.uint64),
        varied=~none, nan=none, inf=none, rms=sizes.reshape(ranks, count),
    )  # fmt: skip


def spread(share: float) -> Draw:
    """Other data on every rank: log-normal, partly together for all series of a rank and step."""

    def draw(rng: np.random.Generator, ranks: int, series: int, steps: int) -> Array:
        together = rng.normal(size=(ranks, 1, steps))
        alone = rng.normal(size=(ranks, series, steps))
        return np.exp(share * (0.7 * together + 0.7 * alone))

    return draw


def tails(rng: np.random.Generator, ranks: int, series: int, steps: int) -> Array:
    """Now and then a batch that is far from the others: Student's t with three degrees."""
    return np.exp(0.15 * rng.standard_t(3, size=(ranks, 1, steps))) * spread(0.1)(
        rng, ranks, series, steps
    )


def sharded(rng: np.random.Generator, ranks: int, series: int, steps: int) -> Array:
    """Shards that are larger than others for good."""
    return np.exp(rng.normal(size=(ranks, series, 1))) * spread(0.2)(rng, ranks, series, steps)


def rows_of_one(rng: np.random.Generator, ranks: int, series: int, steps: int) -> Array:
    """One rank holds the frequent words' rows of two tables."""
    sizes = spread(0.2)(rng, ranks, series, steps)
    sizes[0, :2] *= 30
    return sizes


def drifting(rng: np.random.Generator, ranks: int, series: int, steps: int) -> Array:
    """Shards that grow apart slowly; one of them faster."""
    walk = np.cumsum(rng.normal(size=(ranks, series, steps)), axis=2)
    sizes = np.exp(0.05 * walk) * spread(0.2)(rng, ranks, series, steps)
    sizes[0, 0] *= np.exp(0.05 * np.arange(steps))
    return sizes


BENIGN: dict[str, Draw] = {
    "data, 5 %": spread(0.05),
    "data, 30 %": spread(0.3),
    "data, a factor of e": spread(1.0),
    "heavy tails": tails,
    "shards": sharded,
    "rows of one rank": rows_of_one,
    "shards that drift": drifting,
}
JUMPS = {"8 times": 8.0, "64 times": 64.0, "a 64th": 1 / 64, "an exponent bit": 2.0**16}
LEVELS = {"twice": 2.0, "half": 0.5, "8 times": 8.0}


def cases(first: int, stop: int) -> Iterator[tuple[int, str, Array]]:
    """Jobs without a fault, by number."""
    for number in range(first, stop):
        for name, draw in BENIGN.items():
            rng = np.random.default_rng([number, len(name)])
            yield number, name, draw(rng, RANKS[number % len(RANKS)], SERIES, STEPS)


def found(sizes: Array) -> list[Departure]:
    """What leaves its peers in these sizes."""
    with np.errstate(all="ignore"):
        return list(departures_of_norms(grid(sizes), [False] * sizes.shape[1]))


def jumped(sizes: Array, factor: float, number: int) -> tuple[Array, int, int]:
    """The same with one record of one rank too large, its rank and step."""
    rng = np.random.default_rng(number)
    rank, step = int(rng.integers(sizes.shape[0])), int(rng.integers(3, sizes.shape[2]))
    sizes = sizes.copy()
    sizes[rank, int(rng.integers(sizes.shape[1])), step] *= factor
    return sizes, rank, step


def raised(sizes: Array, factor: float, number: int) -> tuple[Array, int, int]:
    """The same with one rank too large in all series and from the first step on."""
    rank = number % sizes.shape[0]
    sizes = sizes.copy()
    sizes[rank] *= factor
    return sizes, rank, 0


def score(first: int, stop: int) -> dict[str, tuple[int, int]]:
    """By benign kind and fault: how many were found (of a fault: rank and step), of how many."""
    table: dict[str, tuple[int, int]] = {}

    def add(name: str, hit: bool) -> None:
        hits, of = table.get(name, (0, 0))
        table[name] = (hits + hit, of + 1)

    for number, kind, sizes in cases(first, stop):
        add(f"{kind}: no fault", bool(found(sizes)))
        for plant, faults in ((jumped, JUMPS), (raised, LEVELS)):
            for name, factor in faults.items():
                bad, rank, step = plant(sizes, factor, number)
                told = found(bad)
                right = bool(told) and all(one.rank == rank for one in told)
                right = right and min(one.place % STEPS for one in told) == step
                add(f"{kind}: {plant.__name__} {name}", right)
    return table


if __name__ == "__main__":
    for title, some in (("chosen with", (0, 18)), ("held out", (18, 27))):
        print(title)
        for name, (hits, of) in score(*some).items():
            print(f"  {name:<45} {hits:>3} of {of}")
