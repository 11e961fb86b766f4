"""What `anchor doctor` finds: a line each, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from anchor_cli.terminal import Screen

__all__ = ["Finding", "Level"]

Level = Literal["ok", "beware", "broken"]
_COLOURS: dict[str, int] = {"ok": 32, "beware": 33, "broken": 31}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    about: what, in a word or two.
    text: how it is, as one line; names in it are escaped.
    todo: what to do, "" where nothing is to be done.
    """

    level: Level
    about: str
    text: str
    todo: str = ""

    def line(self, screen: Screen) -> str:
        """As a terminal or a pipe shows it."""
        level = screen.style(f"{self.level:<6}", _COLOURS[self.level])
        return f"{level}  {self.about}: {self.text}{f'; {self.todo}' if self.todo else ''}"

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
