"""`anchor run` and ANCHOR_WATCH: recording a program that was not edited.

    anchor run ──▶ the command, with ANCHOR_LAUNCH and the folder hook/ in its environment
                     └─▶ hook/sitecustomize   runs in every Python: waits until torch is imported
                           └─▶ noticing       is called for each optimizer that is constructed
                                 └─▶ trainer  opens a session, and watches the optimizers' models
    ANCHOR_WATCH ──▶ anchorlib_watch.pth, which is installed beside the packages, runs the same hook

request       the request, as JSON in the environment   roots     the models of given parameters
command       the command and its environment           callings  the program's names of its models
interpreters  Pythons that will run unobserved          session   a trainer's session
models        the watched models, and their prefixes    saying    lines on stderr

Importing this package does not import torch: the command line imports the package, and so does each
Python that `anchor run` starts.
"""

from __future__ import annotations

from anchorlib.launch.command import Launch, launch
from anchorlib.launch.noticing import observe_trainers
from anchorlib.launch.request import Request, selectors_of_environment

__all__ = [
    "Launch",
    "Request",
    "launch",
    "observe_trainers",
    "selectors_of_environment",
]
