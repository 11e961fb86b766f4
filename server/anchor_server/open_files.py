"""How many files this process may have open."""

from __future__ import annotations

import logging
import resource
from typing import Final

__all__ = ["allow_files"]

_log = logging.getLogger("anchor_server")

_A_STREAM: Final = 40  # a rank's table, its lock, its catalogue, its connection
_VALUES: Final = 16384  # chunk files of values, all ranks together
_OTHERS: Final = 256
_RANKS: Final = 256  # of which many jobs have fewer


def allow_files(streams: int) -> None:
    """Raise the soft limit to what so many streams need, as far as the system allows.

    A warning where that is too little for so many ranks, or for those of a large job.
    """
    wanted = streams * _A_STREAM + _VALUES + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    enough = max((most - _OTHERS) * 3 // 4 // _A_STREAM, 1)  # a quarter is for values
    if enough < min(streams, _RANKS):
        _log.warning(
            "this process may open %d files, which is enough for %d ranks at once: raise the limit "
            "(ulimit -Hn, or LimitNOFILE of its service) or lower --max-streams",
            most,
            enough,
        )
