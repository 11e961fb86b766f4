"""Spools: folders of this machine that keep records until a collector or a directory has them.

A spool consists of segment files, which hold the messages for the collector. Most messages are
frames, each of which has a number of records.

spool_folder      where spools are, and which process owns a spool
limit             how large a spool may grow
spools            a spool that a session writes, or that a dead process left
writer            adds frames to segments, and brings them to the disk
segments          the files of one spool; `format`: their entries; `disk`: the system's calls
reader            reads frames from segments; `holes`: the numbers of records that were lost
spooled_frames    a spool as an outbox sees it: frames in order, most of them on disk
sending           an outbox's thread: sends to a collector that comes and goes
delivery          delivers the spool of a dead process to a collector; `directory`: to a directory
dead_spool        the content of a dead process's spool, ready to be sent
destination       the store that a spool is sent to, and the run's name there
stored_attempts   the attempts (recordings of the rank) that the target of a delivery has already
earlier_attempts  delivers a rank's earlier attempts, before the present attempt is sent
waiting_spools    the spools of this machine, as `anchor status` shows them

Importing this package imports neither gRPC nor zarr: they come with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorlib.spool.limit import parse_bytes
from anchorlib.spool.spool_folder import is_spool, spool_place, was_spool
from anchorlib.spool.waiting_spools import spool_room, spools_here

if TYPE_CHECKING:
    from anchorlib.spool.dead_spool import DeliveryResult
    from anchorlib.spool.delivery import deliver
    from anchorlib.spool.earlier_attempts import Earlier
    from anchorlib.spool.sending import Sender
    from anchorlib.spool.spools import WrittenSpool, make_spool, spooled_by

__all__ = [
    "DeliveryResult",
    "Earlier",
    "Sender",
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
    "DeliveryResult": "dead_spool",
    "Earlier": "earlier_attempts",
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
