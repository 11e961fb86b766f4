"""Sessions of programs that ask for none: what `anchor run` and the integrations need of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from anchorlib.capture.frames import never_traced
from anchorlib.capture.headers import command
from anchorlib.capture.inline import Losses
from anchorlib.capture.models import hook_called_parts
from anchorlib.capture.own_hooks import hang_after_steps, hang_before_steps
from anchorlib.capture.sessions.opening import open_session
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.settings import Options, settings
from anchorlib.modes import ModeSpec

__all__ = [
    "after_a_step",
    "before_training_goes_on",
    "catches_up_before_steps",
    "close_untold",
    "counted",
    "find_losses",
    "forget_choices",
    "has_begun",
    "is_watched",
    "see_called_parts",
    "speaks",
    "start_unasked",
    "state_command",
    "unwatch",
]


def start_unasked(
    run: str | None, *, rank: int | None, mode: ModeSpec, gives_way: Callable[[], object]
) -> Session:
    """Open the active session of a program that has not asked for it, and may yet open its own.

    gives_way: called when it does, after this session has ended.

    Raises as `start`.
    """
    return open_session(settings(Options(run, rank=rank, mode=mode)), gives_way=gives_way)


def find_losses(session: Session) -> None:
    """From now on what backward is called on is recorded as `loss`, as far as it is a scalar."""
    watches = session._watches  # noqa: SLF001
    losses = Losses(session._observer, session._anchors, watches.has_name)  # noqa: SLF001
    watches.at_close(losses.close)


def after_a_step(session: Session, action: Callable[[], object]) -> None:
    """Call `action` after each step of an optimizer, while the session is open."""
    observer = session._observer  # noqa: SLF001

    @never_traced
    def hook(*_of_step: object) -> None:
        observer.guarded(action)

    session._watches.at_close(hang_after_steps(hook).remove)  # noqa: SLF001


def has_begun(session: Session) -> bool:
    """Whether training has: a forward of a watched model ran, or an optimizer stepped."""
    return session._clock.has_begun  # noqa: SLF001


def before_training_goes_on(session: Session, action: Callable[[], None]) -> None:
    """Call `action` once, where a forward of a watched model or an optimizer's step begins."""
    observer = session._observer  # noqa: SLF001
    if observer.due is None:
        observer.due = action


def catches_up_before_steps(session: Session) -> None:
    """From now on that is done where an optimizer steps without a forward of a model, too."""
    observer = session._observer  # noqa: SLF001

    @never_traced
    def hook(*_of_step: object) -> None:
        observer.catch_up()

    session._watches.at_close(hang_before_steps(hook).remove)  # noqa: SLF001


def is_watched(session: Session, parameter: object) -> bool:
    """Whether `parameter` is one of a watched model."""
    return session._observer.lineage.parameter_name(parameter) is not None  # noqa: SLF001


def forget_choices(session: Session, model: nn.Module) -> None:
    """Forget what was asked of `model`, which stays watched, and its optimizers."""
    session._watches.forget_choices(model)  # noqa: SLF001


def unwatch(session: Session, model: nn.Module) -> None:
    """Watch `model` no longer."""
    session._watches.forget(model)  # noqa: SLF001


def see_called_parts(session: Session, model: nn.Module) -> Callable[[], None]:
    """A part of `model` that is called by itself is a forward of it; what undoes that."""
    return hook_called_parts(model, session._observer)  # noqa: SLF001


def state_command(session: Session, words: Sequence[str]) -> None:
    """Say in the run's header that it was `words` that recorded it, masked."""
    if session._settings.recording:  # noqa: SLF001
        session._recorder.header("command", command(list(words)))  # noqa: SLF001


def close_untold(session: Session) -> None:
    """Close `session`, whose caller says what was counted."""
    session._tells_end = False  # noqa: SLF001
    session.close()


def speaks(session: Session) -> bool:
    """Whether it is this rank that says what there is to say of the run."""
    return session._settings.speaks  # noqa: SLF001


def counted(session: Session, store: str) -> str:
    """Steps and passes of a session, which optimizer ended what, and what is in `store` now."""
    return session._counted(store)  # noqa: SLF001
