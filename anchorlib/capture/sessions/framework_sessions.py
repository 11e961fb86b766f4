"""Functions on sessions that `anchor run` and the integrations open for a program.

They reach into a session's private attributes, which are not part of what users may call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from anchorlib.capture.dynamo_marks import never_traced
from anchorlib.capture.headers import command
from anchorlib.capture.inline import LossFinder
from anchorlib.capture.models import hook_called_parts
from anchorlib.capture.own_hooks import add_global_step_post_hook, add_global_step_pre_hook
from anchorlib.capture.sessions.active import open_session
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.modes import ModeSpec
from anchorlib.scope import TRAIN

__all__ = [
    "after_a_step",
    "before_training_goes_on",
    "catches_up_before_steps",
    "close_without_summary",
    "find_losses",
    "forget_choices",
    "has_begun",
    "is_watched",
    "leaves_out",
    "prints_messages",
    "see_called_parts",
    "sharing_names",
    "start_unasked",
    "state_command",
    "summary_line",
    "unwatch",
]


def start_unasked(
    run: str | None, *, rank: int | None, mode: ModeSpec, gives_way: Callable[[], object]
) -> Session:
    """Open and return a session for a program that did not ask for it, and may open its own later.

    run, rank, mode: as for `start`; None for run or rank: chosen as `start` chooses. gives_way:
        called when the program opens a session of its own, after this session has been closed.

    Raises whatever `start` raises.
    """
    return open_session(settings(StartArguments(run, rank=rank, mode=mode)), gives_way=gives_way)


def find_losses(session: Session) -> None:
    """Record as `loss`, while the session is open, each scalar on which `backward` is called.

    No scalar is recorded where an anchor or a tensor of a watched model is called `loss`.
    """
    watches = session._watches  # noqa: SLF001
    losses = LossFinder(session._observer, session._anchors, watches.has_name)  # noqa: SLF001
    watches.at_close(losses.close)


def after_a_step(session: Session, action: Callable[[], object]) -> None:
    """Have `action` called after each step of any optimizer, while the session is open.

    If `action` raises, the exception is counted and logged.
    """
    observer = session._observer  # noqa: SLF001

    @never_traced
    def hook(*_of_step: object) -> None:
        observer.guarded(action)

    session._watches.at_close(add_global_step_post_hook(hook).remove)  # noqa: SLF001


def has_begun(session: Session) -> bool:
    """Return whether training has begun.

    It has begun when a tensor was observed, an optimizer stepped, or a step was ended by hand.
    """
    return session._clock.has_begun  # noqa: SLF001


def before_training_goes_on(session: Session, action: Callable[[], None]) -> None:
    """Have `action` called once, when the next forward of a watched model begins.

    If `catches_up_before_steps` was called, `action` is called before the next step of an optimizer
    if that comes first. Does nothing where another action waits already.
    """
    observer = session._observer  # noqa: SLF001
    if observer.due is None:
        observer.due = action


def catches_up_before_steps(session: Session) -> None:
    """Have actions of `before_training_goes_on` called also before a step of any optimizer."""
    observer = session._observer  # noqa: SLF001

    @never_traced
    def hook(*_of_step: object) -> None:
        observer.catch_up()

    session._watches.at_close(add_global_step_pre_hook(hook).remove)  # noqa: SLF001


def is_watched(session: Session, parameter: object) -> bool:
    """Return whether `parameter` is a parameter of a model that `session` watches."""
    return session._observer.lineage.marks.parameter_name(parameter) is not None  # noqa: SLF001


def forget_choices(session: Session, model: nn.Module) -> None:
    """Forget which tensors of `model` to record, and its optimizers; the model stays watched.

    Nothing of the model is recorded until `watch` is called again.
    """
    session._watches.forget_choices(model)  # noqa: SLF001


def unwatch(session: Session, model: nn.Module) -> None:
    """Stop watching `model`: remove its hooks, and free its names for another model."""
    session._watches.forget(model)  # noqa: SLF001


def see_called_parts(session: Session, model: nn.Module) -> Callable[[], None]:
    """Count a program's direct calls of a submodule of `model` as forwards of the model.

    Returns a function that removes the hooks by which the calls are seen.
    """
    return hook_called_parts(model, session._observer)  # noqa: SLF001


def state_command(session: Session, words: Sequence[str]) -> None:
    """Note in the run's header the command line by which the run is recorded, with secrets masked.

    words: the words of the command line.
    """
    if session._settings.recording:  # noqa: SLF001
        session._recorder.header("command", command(list(words)))  # noqa: SLF001


def close_without_summary(session: Session) -> None:
    """Close `session` without logging its summary line, which the caller has to print."""
    session._ending.has_summary_line = False  # noqa: SLF001
    session.close()


def prints_messages(session: Session) -> bool:
    """Return whether this rank prints messages about the run, as only one of the ranks does."""
    return session._settings.prints_messages  # noqa: SLF001


def summary_line(session: Session, store: str) -> str:
    """Return a line about the session: steps, passes, the optimizers that ended them, records.

    store: where the records are, as the line is to say.
    """
    return session._ending.summary_line(store)  # noqa: SLF001


def leaves_out(session: Session, steps: range) -> bool:
    """Return whether `session` is limited to some phases, or leaves out any of `steps`.

    steps: numbers of steps, looked up in the phase "train".
    """
    limits = session._settings.scope  # noqa: SLF001
    return limits.phases is not None or any(limits.records_nothing(step, TRAIN) for step in steps)


@contextmanager
def sharing_names(session: Session) -> Iterator[None]:
    """Return a context manager in which several watched models may have tensors of equal names.

    It is meant for models that train one after the other, at different steps.
    """
    watches = session._watches  # noqa: SLF001
    before, watches.shares_names = watches.shares_names, True
    try:
        yield
    finally:
        watches.shares_names = before
