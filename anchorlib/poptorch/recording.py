"""Where a model's anchors are recorded, and how those of its last call are found again.

They are recorded by the one session of the process: the one that the program has started, and then
they are in its run; else one in memory, which keeps those of the last call alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from weakref import WeakSet

import torch
from torch import nn

from anchorlib.capture import (
    Session,
    active_session,
    anchor,
    leaves_out,
    record_into,
    sharing_names,
    start,
)
from anchorlib.errors import AnchorError, SessionError, UnknownTensorError
from anchorlib.modes import Mode
from anchorlib.poptorch.anchors import LOSS, Anchor, names_its_loss
from anchorlib.poptorch.errors import Error
from anchorlib.poptorch.modes import Window
from anchorlib.record import Record
from anchorlib.sinks import MemorySink

__all__ = ["Recording"]

_log = logging.getLogger("anchorlib")


class CallSink(MemorySink):
    """Keeps records until they are taken."""

    def take(self) -> list[Record]:
        """All of them, which are then forgotten."""
        records, self.records = self.records, []
        self.gaps.clear()
        self.lineage.clear()
        return records


_in_memory: tuple[Session, CallSink] | None = None
_users: WeakSet[Recording] = WeakSet()  # of the session in memory
_in_call: WeakSet[Session] = WeakSet()


def _session() -> Session:
    """The session that records now."""
    global _in_memory  # noqa: PLW0603  # one session a process
    session = active_session()
    if session is None and os.environ.get("ANCHOR_RUN"):
        try:
            session = start()
        except AnchorError as fault:
            _log.warning("anchorlib: ANCHOR_RUN is set, but nothing is stored: %s", fault)
    if session is None:
        sink = CallSink()
        session = record_into(sink, "poptorch")
        _in_memory = (session, sink)
    return session


def _sink_of(session: Session) -> CallSink | None:
    """Where `session` records, if it is ours."""
    return _in_memory[1] if _in_memory is not None and _in_memory[0] is session else None


class Recording:
    """The anchors of one model."""

    def __init__(self, model: nn.Module, anchors: Collection[Anchor], window: Window) -> None:
        self._model = model
        self._anchors = list(dict.fromkeys(anchors))
        self._window = window
        self._losses: list[Mode] = []
        self._watched: tuple[Session, object] | None = None
        self._added: list[Anchor] = []  # and not watched yet
        self._session: Session | None = None
        self._steps = range(0)
        self._records: list[Record] | None = []

    def add(self, anchors: Collection[Anchor]) -> None:
        """Record these as well, from the next call on."""
        new = [one for one in dict.fromkeys(anchors) if one not in self._anchors]
        self._anchors += new
        self._added += new

    def begin(self, optimizer: torch.optim.Optimizer | None) -> None:
        """A call begins, at a step where its window begins too."""
        if not self._anchors:
            return
        self._session = session = _session()
        sink = _sink_of(session)
        if sink is not None:
            sink.take()
            _users.add(self)
        anew = self._watched != (session, optimizer)
        if anew:
            self._watched, self._losses = (session, optimizer), []
        self._watch(session, optimizer, self._anchors if anew else self._added)
        self._added = []
        if session in _in_call:  # that call was broken off: its window is not ours
            session.step()
        _in_call.add(session)
        first = -(-session.current_step // self._window.updates) * self._window.updates
        if first != session.current_step:
            session.step(first)
        self._steps = range(first, first + self._window.updates)

    def _watch(
        self, session: Session, optimizer: torch.optim.Optimizer | None, anchors: list[Anchor]
    ) -> None:
        by_mode: dict[Mode, list[Anchor]] = {}
        for one in anchors:
            by_mode.setdefault(one.mode, []).append(one)
        own = bool(anchors) and names_its_loss(self._model)
        for mode, alike in by_mode.items():
            selectors = [one.selector for one in alike if own or one.name != LOSS]
            if len(selectors) < len(alike) and mode not in self._losses:
                self._losses.append(mode)
            if selectors:
                with sharing_names(session):
                    session.watch(self._model, tensors=selectors, mode=mode, optimizer=optimizer)

    def see_loss(self, loss: torch.Tensor) -> None:
        """What backward is about to be called on."""
        if self._losses:
            anchor(loss, LOSS, self._losses)

    def end_step(self) -> None:
        """A weight update was made, or an inference call has ended."""
        if self._anchors and self._session is not None:
            self._session.step()

    def finish(self) -> None:
        """The call has ended."""
        if not self._anchors or self._session is None:
            return
        _in_call.discard(self._session)
        self._records = None
        sink = _sink_of(self._session)
        if sink is not None:
            self._session.flush()
            self._records = sink.take()

    def release(self) -> None:
        """Nothing more is recorded here; the session in memory ends with its last user."""
        _users.discard(self)
        self._records, self._watched = [], None
        if _in_memory is not None and not _users:
            _in_memory[0].close()

    @property
    def left_out(self) -> bool:
        """Whether the session leaves out something of the last call."""
        return self._session is not None and leaves_out(self._session, self._steps)

    def rows(self, one: Anchor) -> list[torch.Tensor]:
        """What the last call recorded under an anchor, in order; tensors of their own."""
        from anchorlib.reading import as_tensor  # the store is loaded where it is read

        rows = []
        for record in self._recorded(one):
            if record.raw is None:
                raise Error(
                    f"values of {one.selector} were dropped because the queue was full; "
                    "anchorlib.start(on_full='block') waits instead"
                )
            rows.append(as_tensor(record.raw, record.dtype).clone())
        return rows

    def _recorded(self, one: Anchor) -> list[Record]:
        found = self._stored(one) if self._records is None else self._records
        return [
            record
            for record in found
            if (record.name, record.kind, record.mode) == (one.name, one.kind, str(one.mode))
            and record.coordinates.step in self._steps
        ]

    def _stored(self, one: Anchor) -> list[Record]:
        from anchorlib.reading import open_run  # the store is loaded where it is read

        session = self._session
        assert session is not None
        with contextlib.suppress(SessionError):  # closed: then all of it is there
            session.flush()
        try:
            run = open_run(session.run, session.store)
            series = run.series(one.name, one.kind, rank=session.rank, mode=one.mode)
        except UnknownTensorError:
            return []
        return list(series.where(steps=self._steps).records())
