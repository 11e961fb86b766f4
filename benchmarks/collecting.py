"""How fast records reach a collector's store, beside loopback TCP and a plain file.

The collector is a process of its own, the sender a session's remote sink with its spool: the whole
line, from `put` to the acknowledgement of the last record.

    python -m benchmarks collecting
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from anchorlib.block import block_of
from anchorlib.record import Record
from anchorlib.sinks import RunOptions, open_sink
from benchmarks.calls import collector
from benchmarks.figures import Figure, figure
from benchmarks.storing import plain, records
from benchmarks.timing import Ratio, interleaved, ratio

Batches = list[list[Record]]


def figures() -> Iterator[Figure]:
    """Measure small records per second, and bytes of large records per second."""
    with tempfile.TemporaryDirectory() as folder, collector(Path(folder), "remote") as address:
        small = batches(100, 300, 300, 30_000)
        samples = interleaved({"remote": sent(address, "small", small)}, rounds=5)
        rates = [30_000 / one.wall for one in samples["remote"]]
        what = "remote, 400 B records into the collector's store"
        yield figure(what, Ratio.of(rates), "records/s", at_least=100_000)
        large = batches(1 << 20, 1, 1, 32)
        arms = {
            "remote": sent(address, "large", large),
            "tcp": lambda: over_tcp(large),
            "file": into_files(Path(folder), large),
        }
        samples = interleaved(arms, rounds=5)
        for base, bound, words in (("tcp", 0.25, "loopback TCP"), ("file", 0.2, "plain files")):
            found = ratio(samples, base, "remote")
            why = "new pages of spool and store, and messages that are checked before they count"
            yield figure(f"remote, 4 MiB records / {words}", found, at_least=bound, why=why)


def batches(elements: int, names: int, batch: int, count: int) -> Batches:
    """Records as a drain thread hands them over."""
    every = records(names, count // names, elements)
    return [every[start : start + batch] for start in range(0, len(every), batch)]


def sent(address: str, name: str, batches: Batches) -> Callable[[], None]:
    """A function that sends a new run and returns when all its records are acknowledged."""
    number = 0
    blocks = [block_of(batch) for batch in batches]

    def run() -> None:
        nonlocal number
        number += 1
        sink = open_sink(address, RunOptions(f"{name}{number}", rank=0, on_full="block"))
        for block in blocks:
            sink.put(block)
        sink.flush().wait(None)
        sink.close(30)

    return run


def over_tcp(batches: Batches) -> None:
    """Send the bytes of the records through a socket on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        total = sum(record.nbytes for batch in batches for record in batch)

        def receive() -> None:
            connection, _ = server.accept()
            buffer = bytearray(1 << 20)
            left = total
            with connection:
                while left:
                    left -= connection.recv_into(buffer)
                connection.sendall(b".")

        thread = threading.Thread(target=receive)
        thread.start()
        with socket.create_connection(server.getsockname()) as client:
            for batch in batches:
                for record in batch:
                    assert record.raw is not None
                    client.sendall(record.raw.data)
            client.recv(1)
        thread.join()


def into_files(folder: Path, batches: Batches) -> Callable[[], None]:
    """A function that writes each record to its own file, which the next call overwrites."""
    number = 0

    def run() -> None:
        nonlocal number
        number += 1
        plain(folder / f"files{number}", batches)

    return run
