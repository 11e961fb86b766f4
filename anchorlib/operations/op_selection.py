"""Selects operations of a run by stage, module and step."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from anchorlib.errors import OptionError
from anchorlib.operations.op import Op

__all__ = ["STAGES", "select_ops"]

STAGES = ("forward", "recompute", "backward", "accumulate", "optimizer")


def select_ops(
    ops: Iterable[Op],
    stage: str | None = None,
    module: str | None = None,
    step: int | range | None = None,
) -> list[Op]:
    """Return the operations that ran in this stage, in these modules and steps.

    Raises OptionError for a stage that is not in STAGES.

    stage: one of STAGES; None for all.
    module: a module's path, or a glob for paths; None for all. A path does not select the modules
    inside the module.
    step: one step or a range of steps; None for all.
    """
    if stage is not None and stage not in STAGES:
        raise OptionError(f"stage is one of {', '.join(STAGES)}, not {stage!r}")
    steps = range(step, step + 1) if isinstance(step, int) else step
    return [
        op
        for op in ops
        if (stage is None or op.stage == stage)
        and (module is None or fnmatchcase(op.module, module))
        and (steps is None or op.step in steps)
    ]
