"""How fast a closed rank is sealed, in how much memory, into how many objects.

Gradients of a small GPT, 200 MB of them, are sealed into a target that keeps nothing: what is timed
is reading, checking, sorting, compressing and hashing, on one core. Beside it the codec alone, over
the same bytes, and what a copy of them costs.

    python -m benchmarks sealing
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from anchorlib.block import block_of
from anchorlib.record import Coordinates, Record
from anchorlib.store import LocalLocation, RankReader, Writer, seal
from anchorlib.summary import summarise
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio, interleaved

STEPS, LAYERS = 40, 6
SHARD_MIB = 64
STATUS = Path("/proc/self/status")
SHAPES = {
    "attention": (128, 384), "projection": (128, 128), "fc1": (512, 128), "fc2": (128, 512),
    "norm": (128,), "bias": (512,),
}  # fmt: skip


class Counted:
    """A target that counts the objects and bytes that it is given, and keeps nothing."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def put(self, key: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """See `Target.put`."""
        self.sizes[key] = sum(map(len, parts))


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    from numcodecs import Blosc

    with tempfile.TemporaryDirectory() as folder:
        run = LocalLocation(gpt(Path(folder)))
        reader = RankReader(run, 0)
        rows = np.arange(reader.committed)
        nbytes = reader.stored_bytes(rows)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what there is now
        before, target = peak_mib(), Counted()
        seal(run, reader, target)
        shards = Ratio.of([(peak_mib() - before) / SHARD_MIB])
        promised = 60 + 6 * len(reader.catalogue.forms) + nbytes / (32 << 20)
        values = np.concatenate([data.reshape(-1) for data, _ in reader.blocks(rows)])
        codec = Blosc("lz4", 5, Blosc.BITSHUFFLE)
        chunks = np.array_split(values, -(-nbytes // (2 << 20)))
        arms = {
            "sealing": lambda: seal(run, RankReader(run, 0), Counted()),
            "codec": lambda: [len(codec.encode(chunk)) for chunk in chunks],
            "copy": values.copy,
        }
        samples = interleaved(arms, rounds=5)
    rates = {
        name: Ratio.of([nbytes / 1e6 / one.process for one in taken])
        for name, taken in samples.items()
    }
    yield figure("sealing gradients of a GPT, one core", rates["sealing"], "MB/s", at_least=200)
    yield figure("the codec alone, the same bytes", rates["codec"], "MB/s")
    yield figure("a copy of them in memory", rates["copy"], "MB/s")
    yield figure("memory that sealing takes, in shards", shards, "shards", at_most=3)
    objects = Ratio.of([float(len(target.sizes))])
    yield figure("objects of the sealed rank", objects, "objects", at_most=promised)


def gpt(store: Path) -> Path:
    """A closed run of the gradients of a small GPT."""
    random = np.random.default_rng(0)
    order = 0
    with Writer.open(store, "gpt", 0) as writer:
        for step in range(STEPS):
            made = []
            for layer in range(LAYERS):
                for name, shape in SHAPES.items():
                    raw = random.standard_normal(shape, "<f4") * np.float32(1e-3)
                    made.append(
                        Record(
                            f"blocks.{layer}.{name}", "grad", "all", Coordinates(step), order, 0,
                            "float32", shape, raw, summarise(raw, "float32"),
                        )
                    )  # fmt: skip
                    order += 1
            writer.write_block(block_of(made))
    return store / "gpt.zarr"


def peak_mib() -> float:
    """The most memory that this process had since the peak was begun anew."""
    (line,) = (one for one in STATUS.read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
