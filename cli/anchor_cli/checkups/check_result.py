"""A finding of `anchor doctor`: one line, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from anchor_cli.terminal import Screen

__all__ = ["Finding", "Level"]

Level = Literal["ok", "beware", "broken"]
_COLOURS: dict[str, int] = {"ok": 32, "beware": 33, "broken": 31}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    about: the thing that was checked, in a word or two.
    text: its state, as one line; names in it are escaped.
    todo: what to do, "" where nothing is to be done.
    """

    level: Level
    about: str
    text: str
    todo: str = ""

    def line(self, screen: Screen) -> str:
        """The line for a terminal or a pipe."""
        level = screen.style(f"{self.level:<6}", _COLOURS[self.level])
        return f"{level}  {self.about}: {self.text}{f'; {self.todo}' if self.todo else ''}"

    def document(self) -> dict[str, Any]:
        """The finding as an object of the JSON document."""
        return asdict(self)
