"""`anchor run`: an unedited program, recorded.

    anchor run ──▶ the command, with ANCHOR_LAUNCH and the folder hook/ in its environment
                     └─▶ hook/sitecustomize   in every Python: waits until torch is imported
                           └─▶ constructions  hears of each optimizer that is constructed
                                 └─▶ trainer  opens a session, and watches the models it updates

    ANCHOR_WATCH ──▶ anchorlib_watch.pth, which installing puts beside the packages: the same hook

request       what was asked, as it travels    roots     the models that parameters belong to
command       the command's environment        callings  what the program calls its models
interpreters  why some are not seen            session   a trainer's session, and its last line
models        the models that it watches, and what their names begin with

Importing this imports no torch: the command line does, and each Python that `anchor run` starts.
"""

from __future__ import annotations

from anchorlib.launch.command import Launch, launch
from anchorlib.launch.observing import observe_trainers
from anchorlib.launch.request import Request, selectors_of_environment

__all__ = [
    "Launch",
    "Request",
    "launch",
    "observe_trainers",
    "selectors_of_environment",
]
