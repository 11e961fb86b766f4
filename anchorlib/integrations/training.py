"""ObservedTraining: opens and closes the session of a training whose loop a framework runs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from anchorlib.capture import Session, find_losses, start

__all__ = ["ObservedTraining"]


class ObservedTraining:
    """Opens, for an integration, a session when a training begins, and closes it at the end.

    run, options: the run's name, and a dict of keyword arguments, for `anchorlib.start`.
    tensors, prefix: arguments of the same names for `Session.watch`.
    session: the open session; None while no training runs.

    Raises TypeError for an option that `start` does not take.
    """

    def __init__(
        self, run: str | None, tensors: Sequence[str] | str | None, prefix: str, options: Any
    ) -> None:
        # A wrong keyword shall raise where the user wrote it, not when training begins.
        inspect.signature(start).bind(run, **options)
        self.run = run
        self.session: Session | None = None
        self._tensors = tensors
        self._prefix = prefix
        self._options: dict[str, Any] = options

    def begin(
        self, model: nn.Module, optimizer: object, *, rank: int, first_step: int = 0
    ) -> Session:
        """Open the session and watch `model` with its optimizer or its list of optimizers.

        Each scalar on which `backward` is called is recorded as `loss`, unless an anchor or a
        watched tensor has that name. A session that an earlier training left open is closed first.

        rank: this process's rank, unless the user's options give another.
        first_step: the number of the first step, unless the user's options give another. If it is
        not 0, the training goes on from a checkpoint: the session records the run's next attempt
        in the run as it is, unless the user's options say `resume` themselves.

        Returns the session. Raises what `start` and `Session.watch` raise; then no session is open.
        """
        self.end()  # an exception may have ended the training before without closing its session
        options = {"rank": rank, "first_step": first_step, **self._options}
        if first_step and "resume" not in self._options:
            options |= {"resume": True, "overwrite": False}
        session = start(self.run, **options)
        try:
            session.watch(model, tensors=self._tensors, optimizer=optimizer, prefix=self._prefix)
        except BaseException as fault:
            session.__exit__(type(fault), fault, None)
            raise
        find_losses(session)
        self.session = session
        return session

    def end(self, fault: BaseException | None = None) -> None:
        """Close the session, if one is open.

        fault: the exception that ended the training, in which case closing raises none of its own;
        None for a training that ended normally.
        """
        session, self.session = self.session, None
        if session is not None:
            session.__exit__(None if fault is None else type(fault), fault, None)
