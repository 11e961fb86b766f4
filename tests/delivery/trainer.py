"""A sink without a session: puts numbered records, tells a file how far it came.

    python -m tests.delivery.trainer ADDRESS PLACE LOG FIRST LAST SEED [FAILPOINT | power]

FAILPOINT kills the process, as kill -9 does, at a named place of its spool: before or in the middle
of a write, before a segment is begun or removed, around a sync; with a count that says which time.
`power`: what was put survives power loss.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from anchorlib.block import block_of
from anchorlib.sinks import RunOptions, remote
from anchorlib.spool import make_spool
from anchorlib.spool.disk import Disk
from tests.delivery.lines import numbered
from tests.delivery.mortal import Countdown, MortalDisk


def main(arguments: Sequence[str]) -> int:
    """Puts records FIRST … LAST - 1; the log has how many `put` took, line by line."""
    address, place, log, first, last, seed, *point = arguments
    chance = random.Random(int(seed))
    disk = Disk()
    if point and point != ["power"]:
        disk = MortalDisk(Countdown.of(point[0]))

    def make(*given, **options):
        return make_spool(*given, disk=disk, segment_bytes=40_000, **options)

    remote.make_spool = make  # type: ignore[assignment]
    sink = remote.RemoteSink(
        f"grpc://{address}",
        RunOptions(
            "run1",
            0,
            {"seed": 1},
            resume=int(first) > 0,
            durability="power" if chance.random() < 0.3 or point == ["power"] else "process",
        ),
        spool=Path(place),
    )
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = int(first)
    while number < int(last):
        end = min(int(last), number + chance.randrange(1, 12))
        sink.put(block_of([numbered(n) for n in range(number, end)]))
        os.write(file, f"{number}-{end}\n".encode())
        number = end
        if chance.random() < 0.2:
            time.sleep(chance.random() * 0.01)
    return sink.close(60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
