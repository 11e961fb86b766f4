"""A writer for `test_crash` to kill: batches of all sorts, each acknowledged on stdout.

python crashing.py STORE SEED
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from anchorlib.record import Record
from anchorlib.store import Writer
from tests.anchorlib.store.records import filled, record
from tests.writing import put

DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "int64")


def batch(number: int, start: int) -> list[Record]:
    """The records of one batch, the same for the same number."""
    rng = np.random.default_rng(number)
    records = []
    for order in range(start, start + int(rng.integers(1, 12))):
        shape = [(100,), (3, 7), (), (70_000,), (int(rng.integers(0, 30)), 2)][rng.integers(0, 5)]
        dtype = DTYPES[rng.integers(0, len(DTYPES))]
        name = f"layer.{rng.integers(0, 6)}/{len(shape)}"
        mode = "summary" if rng.integers(0, 8) == 0 else "all"
        raw = filled(dtype, shape, seed=order)
        records.append(record(name, number, raw, dtype=dtype, mode=mode, order=order))
    return records


def main(store: str, seed: str) -> None:
    """Writes until it is killed, saying after each batch how many records are committed."""
    writer = Writer.open(Path(store), "run1", 0, writer_id=b"crash")
    number = 1000 * int(seed)
    os.write(1, b"o")
    while True:
        put(writer, batch(number, writer.committed))
        os.write(1, b"%d\n" % writer.committed)
        number += 1
        if number % 5 == 0:
            writer.publish()


if __name__ == "__main__":
    main(*sys.argv[1:])
