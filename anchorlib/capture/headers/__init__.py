"""The facts besides tensors that a run depends on, for the run's header, with secrets masked."""

from anchorlib.capture.headers.header import autocast, command, run_header
from anchorlib.capture.headers.histories import Histories
from anchorlib.capture.headers.hyperparameters import header_prefix, hyperparameters
from anchorlib.capture.headers.module_texts import module_texts, module_tree
from anchorlib.capture.headers.starting_values import StartingValues

__all__ = [
    "Histories",
    "StartingValues",
    "autocast",
    "command",
    "header_prefix",
    "hyperparameters",
    "module_texts",
    "module_tree",
    "run_header",
]
