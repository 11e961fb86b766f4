"""Runs of many ranks, written without torch: replicated, sharded and local tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from anchorlib.record import Record
from tests.cli.made import make_run, record

Array = np.ndarray
Change = Callable[[int, int, str, Array], Array]


def as_drawn(_rank: int, _step: int, _name: str, values: Array) -> Array:
    """No change."""
    return values


def drawn(seed: int, *where: int, shape: tuple[int, ...] = (4,), scale: float = 1.0) -> Array:
    """Numbers that only this place draws."""
    found = np.random.default_rng([seed, *where]).normal(size=shape) * scale
    return found.astype(np.float32)


def job(
    store: Path,
    ranks: Iterable[int],
    steps: int = 3,
    *,
    change: Change = as_drawn,
    local: float = 0.3,
    run: str = "run1",
    ends: dict[int, int] | None = None,
) -> None:
    """A data-parallel job: `w` and `b` replicated, `x` and its gradient each rank's own.

    local: the standard deviation of a rank's own sizes, in e-folds.
    ends: the step before which a rank ended.
    """
    for rank in ranks:
        length = min(steps, (ends or {}).get(rank, steps))
        make_run(store, of_rank(rank, length, change, local), run, rank=rank)


def of_rank(rank: int, steps: int, change: Change, local: float = 0.3) -> list[Record]:
    """What one rank of such a job records."""
    records: list[Record] = []
    for step in range(steps):
        own = np.exp(local * drawn(7, rank, step, shape=()))
        named = {
            ("w", "value"): drawn(1, step, shape=(3, 2)),
            ("b", "value"): np.float32(step) + np.zeros(2, np.float32),
            ("x", "value"): drawn(2, rank, step),
            ("x", "grad"): drawn(3, rank, step) * own,
            ("w", "grad"): drawn(4, step, shape=(3, 2)),
        }
        for (name, kind), values in named.items():
            changed = change(rank, step, f"{name}@{kind}", np.asarray(values, np.float32))
            records.append(record(name, kind, changed, step=step, rank=rank))
    return records


def flipped(values: Array, bit: int) -> Array:
    """The same with one bit other."""
    raw = bytearray(values.tobytes())
    bit %= 8 * len(raw)
    raw[bit // 8] ^= 1 << bit % 8
    return np.frombuffer(bytes(raw), values.dtype).reshape(values.shape)


def only(rank: int, step: int, name: str, bit: int, until: int = 1 << 30) -> Change:
    """Flips a bit of one rank in one tensor, from a step on."""

    def change(at: int, when: int, called: str, values: Array) -> Array:
        if (at, called) == (rank, name) and step <= when < until:
            return flipped(values, bit)
        return values

    return change


def shards(values: Array, ranks: int) -> Sequence[Array]:
    """A tensor in as many parts as there are ranks, along its first axis; the last may be empty."""
    rows = -(-len(values) // ranks)
    return [values[rows * rank : rows * (rank + 1)] for rank in range(ranks)]
