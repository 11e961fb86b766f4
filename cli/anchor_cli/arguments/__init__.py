"""Arguments of commands: options that several commands share, amounts, shell completion."""

from anchor_cli.arguments.amounts import (
    parse_age,
    parse_keep,
    parse_most,
    parse_rate,
    parse_seconds,
    parse_size,
)
from anchor_cli.arguments.bash import asked_by_bash
from anchor_cli.arguments.dask_option import spread_over
from anchor_cli.arguments.op_options import (
    ModuleOption,
    StageOption,
    StepOption,
    chosen_steps,
    tell_gaps,
    traced_ops,
)
from anchor_cli.arguments.options import (
    DaskOption,
    JsonOption,
    RunArgument,
    StoreOption,
    TensorOption,
    a_run,
    examples,
    not_empty,
    several_runs,
    without_slash,
)
from anchor_cli.arguments.record_options import narrowing
from anchor_cli.arguments.record_selection import Selection

__all__ = [
    "DaskOption",
    "JsonOption",
    "ModuleOption",
    "RunArgument",
    "Selection",
    "StageOption",
    "StepOption",
    "StoreOption",
    "TensorOption",
    "a_run",
    "asked_by_bash",
    "chosen_steps",
    "examples",
    "narrowing",
    "not_empty",
    "parse_age",
    "parse_keep",
    "parse_most",
    "parse_rate",
    "parse_seconds",
    "parse_size",
    "several_runs",
    "spread_over",
    "tell_gaps",
    "traced_ops",
    "without_slash",
]
