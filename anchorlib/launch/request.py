"""What `anchor run` was asked to record, as it travels to the processes of its command."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anchorlib.errors import AnchorError, OptionError
from anchorlib.modes import parse_modes
from anchorlib.names import check_run_name, parse, parse_list

__all__ = ["LAUNCH", "WATCH", "Request", "is_rerun", "selectors_of_environment"]

LAUNCH = "ANCHOR_LAUNCH"
"""What `anchor run` tells the processes of its command: the request, as JSON."""
WATCH = "ANCHOR_WATCH"
"""What users set: selectors, comma-separated."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is recorded of an unedited program.

    name: the run's; None: as `start` finds it.
    watch: selectors; empty: what `Session.watch` records by default.
    mode: as for `start`; None: its default.
    command: what was typed, for the run's header; empty where nobody typed `anchor run`.
    process: the number of the command's own process.
    store: as it was typed: the processes have where it is, for they may change directory.
    """

    name: str | None = None
    watch: tuple[str, ...] = ()
    mode: str | None = None
    command: tuple[str, ...] = ()
    process: int = 0
    store: str = ""

    def check(self) -> None:
        """Raises InvalidNameError, ModeError, OptionError for what no session would take."""
        if self.name is not None:
            check_run_name(self.name)
        for text in self.watch:
            parse(text)
        if self.mode is not None:
            parse_modes(self.mode)

    def text(self) -> str:
        """The request as one line of JSON."""
        return json.dumps({key: value for key, value in asdict(self).items() if value})

    @classmethod
    def of_environment(cls) -> Request:
        """The request that this process was started with.

        Raises OptionError for text that is none, and what `check` raises.
        """
        text = os.environ.get(LAUNCH)
        request = cls(**_fields(text)) if text else cls(watch=selectors_of_environment())
        request.check()
        return request


def selectors_of_environment() -> tuple[str, ...]:
    """The selectors in ANCHOR_WATCH; none where it is not set.

    Raises OptionError for one that no name can have, and where there is none in it.
    """
    text = os.environ.get(WATCH)
    if not text:
        return ()
    try:
        return tuple(selector.text for selector in parse_list(text))
    except AnchorError as fault:
        raise OptionError(f"{WATCH} in the environment: {fault}") from None


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
        raise OptionError(f"{LAUNCH} in the environment is set by `anchor run` alone") from None


def _maybe(value: object) -> str | None:
    return None if value is None else str(value)


def is_rerun() -> bool:
    """Whether the sessions of this process name themselves otherwise: they record a run again."""
    return any(map(os.environ.get, ("ANCHOR_PERTURB", "ANCHOR_GRAFT")))
