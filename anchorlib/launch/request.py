"""What `anchor run` is to record, passed to the processes of its command in the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anchorlib.errors import AnchorError, OptionError
from anchorlib.modes import parse_modes
from anchorlib.names import check_run_name, parse, parse_list

__all__ = ["LAUNCH", "Request", "is_rerun", "selectors_of_environment"]

LAUNCH = "ANCHOR_LAUNCH"
"""The variable in which `anchor run` passes the request to its command's processes, as JSON."""
_WATCH = "ANCHOR_WATCH"
"""The variable that users set without `anchor run`: selectors, separated by commas."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to record of an unedited program.

    name: the run's name; None: `anchorlib.start` chooses it.
    watch: selectors of the tensors to record; empty: the default of `Session.watch`.
    mode: a mode as text; None: every observation is recorded.
    command: the command that `anchor run` runs, for the run's header; empty without `anchor run`.
    process: the process id of the command's first process; 0 without `anchor run`.
    store: the store as the user typed it, for messages; "" without `anchor run`. The processes find
        the store's absolute path in ANCHOR_STORE, since they may change directory.
    """

    name: str | None = None
    watch: tuple[str, ...] = ()
    mode: str | None = None
    command: tuple[str, ...] = ()
    process: int = 0
    store: str = ""

    def check(self) -> None:
        """Raise an error if sessions would refuse the request.

        Raises InvalidNameError for a name that cannot name a run, UnknownTensorError for a text in
        `watch` that is no selector, and ModeError for a text that is no mode.
        """
        if self.name is not None:
            check_run_name(self.name)
        for text in self.watch:
            parse(text)
        if self.mode is not None:
            parse_modes(self.mode)

    def text(self) -> str:
        """Return the request as one line of JSON, which `of_environment` reads back."""
        return json.dumps({key: value for key, value in asdict(self).items() if value})

    @classmethod
    def of_environment(cls) -> Request:
        """Return the request in this process's environment: in ANCHOR_LAUNCH, else in ANCHOR_WATCH.

        From ANCHOR_WATCH come the selectors alone; without either variable, every field has its
        default. Raises OptionError where ANCHOR_LAUNCH is no request or ANCHOR_WATCH is no list of
        selectors; and what `check` raises.
        """
        text = os.environ.get(LAUNCH)
        request = cls(**_fields(text)) if text else cls(watch=selectors_of_environment())
        request.check()
        return request


def selectors_of_environment() -> tuple[str, ...]:
    """Return the selectors in ANCHOR_WATCH; empty where it is not set.

    Raises OptionError for a text that is no selector, and for a list without any selector.
    """
    text = os.environ.get(_WATCH)
    if not text:
        return ()
    try:
        return tuple(selector.text for selector in parse_list(text))
    except AnchorError as fault:
        raise OptionError(f"{_WATCH} in the environment: {fault}") from None


def _fields(text: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text)
        return {
            "name": _maybe(fields.get("name")),
            "watch": tuple(map(str, fields.get("watch", ()))),
            "mode": _maybe(fields.get("mode")),
            "command": tuple(map(str, fields.get("command", ()))),
            "process": int(fields.get("process", 0)),
            "store": str(fields.get("store", "")),
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise OptionError(
            f"{LAUNCH} in the environment is not what `anchor run` sets: unset it"
        ) from None


def _maybe(value: object) -> str | None:
    return None if value is None else str(value)


def is_rerun() -> bool:
    """Return whether this process repeats a recorded run, for `anchor noise` or `anchor graft`.

    The sessions of such a process name their runs after the run that they repeat.
    """
    return any(map(os.environ.get, ("ANCHOR_PERTURB", "ANCHOR_GRAFT")))
