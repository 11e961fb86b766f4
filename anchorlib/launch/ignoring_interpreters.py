"""Python command lines whose options make Python ignore the hook of `anchor run`.

Python imports the hook from PYTHONPATH; the options -I, -E and -S prevent that. They are recognized
in the command before it runs, so that the user is told that nothing will be recorded.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["why_unseen"]

_DEAF = re.compile(r"-[^cmWX-]*?([IES])")  # ignores PYTHONPATH, or does not import sitecustomize
_LAST = re.compile(r"-[^WX-]*[cm]")
_WITH_VALUE = ("-W", "-X")


def why_unseen(words: Sequence[str]) -> str:
    """Return why the command `words` will run unobserved; "" where no reason is known.

    Looked at are the options in `words`, and those in the `#!` line of the program.
    """
    for line in (list(words), _shebang(words[0])):
        option = _deaf_option(line)
        if option:
            return (
                f"Python with the option {option} ignores anchor run: the program runs unobserved"
            )
    return ""


def _deaf_option(words: Sequence[str]) -> str:
    if not words or not re.match(r"python|pypy", Path(words[0]).name):
        return ""
    before = ""
    for word in words[1:]:
        if before in _WITH_VALUE:
            before = ""
            continue
        if deaf := _DEAF.match(word):
            return f"-{deaf[1]}"
        if not word.startswith("-") or _LAST.match(word):
            return ""
        before = word
    return ""


def _shebang(program: str) -> list[str]:
    """Return the words of the `#!` line of `program`, without a leading `env`.

    The list is empty where the program has no such line or is not found.

    program: a path, or a name on PATH.
    """
    path = shutil.which(program)
    if path is None:
        return []
    try:
        with Path(path).open("rb") as file:
            line = file.readline(256) if file.read(2) == b"#!" else b""
    except OSError:
        return []
    words = line.decode(errors="replace").split()
    return words[1:] if words and Path(words[0]).name == "env" else words
