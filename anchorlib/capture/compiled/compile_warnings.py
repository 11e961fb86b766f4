"""Warnings about compiled code that a user is meant to read, each logged once in a session."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from anchorlib.names import escape
from anchorlib.torch_private import emulates_precision, tell_marks

__all__ = ["LOW", "CompileWarnings"]

_log = logging.getLogger("anchorlib")

LOW = (torch.bfloat16, torch.float16)
"""Dtypes that Inductor computes in float32, and rounds only where a value leaves its kernel."""


class CompileWarnings:
    """Warnings of one session about compiled code, each logged once.

    They tell of anchors that recorded nothing, of values that are rounded because they are
    anchored, of gradients that may lack a part, and of marks that this torch's dynamo does not
    know. A mark tells dynamo how to treat a function of ours (see `dynamo_marks`).

    declared: the traced anchors that have recorded nothing so far, by name, each with the step in
        which it was traced.
    """

    def __init__(self) -> None:
        self.declared: dict[str, int] = {}  # anchors that were traced, each with the step
        self._warned: set[str] = set()
        self._told_marks = False

    def tell_marks(self) -> None:
        """Warn of each mark that this torch's dynamo does not know.

        A mark tells dynamo how to treat a function of ours (see `dynamo_marks`). The check is made
        once, at the first call at which dynamo is loaded; other calls do nothing.
        """
        self._told_marks = self._told_marks or tell_marks()

    def overdue(self, upcoming: int | None) -> list[str]:
        """Return traced anchors that are overdue: they recorded nothing though a whole step passed.

        The names are returned, and removed from `declared`. An anchor that was traced in step n is
        overdue from the beginning of step n + 2 on.

        upcoming: the step that begins now; None after the last step: then all anchors in
            `declared` are overdue.
        """
        # Code that is compiled at the end of a step runs in the next step.
        due = [
            name for name, step in self.declared.items() if upcoming is None or step < upcoming - 1
        ]
        for name in due:
            del self.declared[name]
        return due

    def tell_silent(self, names: Iterable[str]) -> None:
        """Warn that the anchors `names` in compiled code recorded nothing; no warning if empty."""
        silent = ", ".join(map(escape, names))
        if silent:
            _log.warning(
                "anchorlib: compiled code has anchors that recorded nothing: %s; either that code "
                "never ran, or its backend removed the anchors",
                silent,
            )

    def tell_rounding(self, name: str, dtype: torch.dtype) -> None:
        """Warn that the anchor `name` makes Inductor round a value that it would keep in float32.

        Only the first such anchor of the session is named. No warning is logged where Inductor
        rounds all such values, as eager code does.
        """
        if not emulates_precision():
            self.warn(
                "rounding",
                f"{escape(name)} is {str(dtype).removeprefix('torch.')} in compiled code: "
                "an anchor there changes how the code around it is rounded; to prevent that, set "
                "torch._inductor.config.emulate_precision_casts = True",
            )

    def warn(self, about: str, text: str) -> None:
        """Log the warning `text`, unless one about the same subject `about` was logged before."""
        if about not in self._warned:
            self._warned.add(about)
            _log.warning("anchorlib: %s", text)
