"""`anchor run` and ANCHOR_WATCH: recording a program that was not edited.

    anchor run ──▶ the command, with ANCHOR_LAUNCH and the folder hook/ in its environment
                     └─▶ hook/sitecustomize   runs in every Python: waits until torch is imported
                           └─▶ noticing       is called for each optimizer that is constructed
                                 └─▶ auto_watcher  opens a session, watches their models
    ANCHOR_WATCH ──▶ anchorlib_watch.pth, which is installed beside the packages, runs the same hook

A watcher is the object that does this work in a process that constructs an optimizer. The hook is
the code in hook/ that Python runs at its start.

request                what to record, passed as JSON in the environment
command                the command that is run, and its environment
ignoring_interpreters  Python command lines that will ignore the hook
models                 the watched models, and the prefixes of their tensors' names
variable_names         the program's own names of its models
session                the session that a watcher opens and closes
roots                  the outermost modules that contain given parameters
stderr_lines           lines on stderr

Importing this package does not import torch: the command line imports the package, and so does each
Python that `anchor run` starts.
"""

from __future__ import annotations

from anchorlib.launch.command import launch
from anchorlib.launch.noticing import observe_optimizers
from anchorlib.launch.request import Request, selectors_of_environment

__all__ = [
    "Request",
    "launch",
    "observe_optimizers",
    "selectors_of_environment",
]
