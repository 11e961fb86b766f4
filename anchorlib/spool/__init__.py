"""Records on this machine's disk until the collector, or another store, has them.

place      where spools are, and which process owns one; `limit`: how large one may grow
spools     one that a session writes, and one that a dead process left
writer     adds frames to segments, and sees that they reach the disk
segments   the files of one spool; `format`: what stands in them; `disk`: the system's calls
reader     frames out of segments; `holes`: the numbers of records that are in none any more
frames     what an outbox sees: frames in order, most of them on disk
sending    an outbox and a collector that comes and goes
delivery   what a dead process left, brought to a collector or, by `directory`, to a directory
load       what is to be delivered; `past`: what is there already; `target`: where it goes
earlier    spools of a rank's earlier attempts, delivered before the present one says anything
left       the spools of this machine, looked at from outside

Importing this package imports neither gRPC nor zarr: they come with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorlib.spool.left import LeftSpool, SpoolRoom, spool_room, spools_here
from anchorlib.spool.limit import parse_bytes
from anchorlib.spool.place import is_spool, spool_place, was_spool

if TYPE_CHECKING:
    from anchorlib.spool.delivery import deliver
    from anchorlib.spool.earlier import Earlier
    from anchorlib.spool.load import Delivered
    from anchorlib.spool.sending import Sender
    from anchorlib.spool.spools import WrittenSpool, make_spool, spooled_by

__all__ = [
    "Delivered",
    "Earlier",
    "LeftSpool",
    "Sender",
    "SpoolRoom",
    "WrittenSpool",
    "deliver",
    "is_spool",
    "make_spool",
    "parse_bytes",
    "spool_place",
    "spool_room",
    "spooled_by",
    "spools_here",
    "was_spool",
]

_LAZY = {
    "Delivered": "load",
    "Earlier": "earlier",
    "Sender": "sending",
    "WrittenSpool": "spools",
    "deliver": "delivery",
    "make_spool": "spools",
    "spooled_by": "spools",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'anchorlib.spool' has no attribute {name!r}")
    return getattr(import_module(f"anchorlib.spool.{_LAZY[name]}"), name)
