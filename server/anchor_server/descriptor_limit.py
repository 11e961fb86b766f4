"""Raises the number of files that this process may have open.

How many files a store's writer keeps open is decided in anchorlib's `store.write.open_files`.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

__all__ = ["allow_files"]

_log = logging.getLogger("anchor_server")

_A_STREAM: Final = 40  # files of one stream: its rank's table, lock and catalogue, its connection
_VALUES: Final = 16384  # chunk files of values, all ranks together
_OTHERS: Final = 256
_RANKS: Final = 256  # most jobs have fewer ranks: room for these needs no warning


def allow_files(streams: int) -> None:
    """Raises the soft limit of open files to the number that `streams` streams need.

    A stream is one Push call of a trainer. A soft limit that is high enough stays. Where the hard
    limit is too low, the soft limit is raised to the hard limit, and a warning is logged if that
    suffices neither for `streams` nor for 256 streams.
    """
    wanted = streams * _A_STREAM + _VALUES + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    enough = max((most - _OTHERS) * 3 // 4 // _A_STREAM, 1)  # a quarter is left for values
    if enough < min(streams, _RANKS):
        _log.warning(
            "this process may open %d files, which is enough for %d ranks at once: raise the limit "
            "(ulimit -Hn, or LimitNOFILE of its service) or lower --max-streams",
            most,
            enough,
        )
