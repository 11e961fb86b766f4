"""Records a model's anchors, and returns what its last call recorded.

Anchors are recorded by the process's session. If the program has started a session, the records are
in its run. Otherwise a session in memory is opened, which keeps the records of the last call alone.
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
    """A sink that keeps records in memory until `take` is called."""

    def take(self) -> list[Record]:
        """Return all records so far, and forget them."""
        records, self.records = self.records, []
        self.gaps.clear()
        self.lineage.clear()
        return records


_in_memory: tuple[Session, CallSink] | None = None
_users: WeakSet[Recording] = WeakSet()  # the recordings that use the session in memory
_in_call: WeakSet[Session] = WeakSet()  # the sessions of calls that have not finished


def _session() -> Session:
    """Return the session to record with: the active session, or else a new session.

    A new session records the run that ANCHOR_RUN names. If ANCHOR_RUN is not set, or that run
    cannot be recorded, the new session keeps its records in memory.
    """
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
    """Return the sink of `session` if it is the session in memory, else None."""
    return _in_memory[1] if _in_memory is not None and _in_memory[0] is session else None


class Recording:
    """Records the anchors of one model, call by call."""

    def __init__(self, model: nn.Module, anchors: Collection[Anchor], window: Window) -> None:
        self._model = model
        self._anchors = list(dict.fromkeys(anchors))
        self._window = window
        self._losses: list[Mode] = []
        self._watched: tuple[Session, object] | None = None
        self._added: list[Anchor] = []  # anchors that are not watched yet
        self._session: Session | None = None
        self._steps = range(0)
        self._records: list[Record] | None = []

    def add(self, anchors: Collection[Anchor]) -> None:
        """Record further anchors, from the next call on."""
        new = [one for one in dict.fromkeys(anchors) if one not in self._anchors]
        self._anchors += new
        self._added += new

    def begin(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Begin a call of the model, at a step that is a multiple of the updates in a call.

        So the window of steps over which a mode sums or selects is exactly this call. Opens a
        session if none is active, and watches the anchors. Records of earlier calls in the session
        in memory are dropped. Does nothing for a model without anchors.

        optimizer: the optimizer of a training model; None for an inference model.
        """
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
        if session in _in_call:  # an exception ended that call: leave its window
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
        """Record the loss, and its gradient, if they are anchored under the name `loss`.

        The caller runs backward afterwards. Nothing is done if `loss` names a tensor of the model.
        """
        if self._losses:
            anchor(loss, LOSS, self._losses)

    def end_step(self) -> None:
        """End the session's step after a weight update, or after a call for inference."""
        if self._anchors and self._session is not None:
            self._session.step()

    def finish(self) -> None:
        """End the call, and move its records out of the session in memory, if that is used."""
        if not self._anchors or self._session is None:
            return
        _in_call.discard(self._session)
        self._records = None
        sink = _sink_of(self._session)
        if sink is not None:
            self._session.flush()
            self._records = sink.take()

    def release(self) -> None:
        """Stop recording; the session in memory is closed when no other model uses it."""
        _users.discard(self)
        self._records, self._watched = [], None
        if _in_memory is not None and not _users:
            _in_memory[0].close()

    @property
    def left_out(self) -> bool:
        """Whether the session's `phases` or `steps` exclude a part of the last call."""
        return self._session is not None and leaves_out(self._session, self._steps)

    def rows(self, one: Anchor) -> list[torch.Tensor]:
        """Return copies of the tensors that the last call recorded for the anchor `one`, in order.

        The list is empty where nothing was recorded. Raises Error where values were dropped because
        the session's queue was full.
        """
        from anchorlib.reading import as_tensor  # imported here, as only readers need the store

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
        records = self._stored(one) if self._records is None else self._records
        return [
            record
            for record in records
            if (record.name, record.kind, record.mode) == (one.name, one.kind, str(one.mode))
            and record.coordinates.step in self._steps
        ]

    def _stored(self, one: Anchor) -> list[Record]:
        from anchorlib.reading import open_run  # imported here, as only readers need the store

        session = self._session
        assert session is not None
        with contextlib.suppress(SessionError):  # a closed session has stored all its records
            session.flush()
        try:
            run = open_run(session.run, session.store)
            series = run.series(one.name, one.kind, rank=session.rank, mode=one.mode)
        except UnknownTensorError:
            return []
        return list(series.where(steps=self._steps).records())
