"""The result of a check of `anchor doctor`: one line of text, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from anchor_cli.terminal import Screen

__all__ = ["CheckResult", "Level"]

Level = Literal["ok", "beware", "broken"]
_COLOURS: dict[str, int] = {"ok": 32, "beware": 33, "broken": 31}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    level: "ok", or "beware" for what may be a mistake, or "broken" for what prevents work.
    about: the thing that was checked, in a word or two.
    text: the state of that thing, as one line; whoever makes the result has to escape names in it.
    todo: what the user should do; "" where nothing is to be done.
    """

    level: Level
    about: str
    text: str
    todo: str = ""

    def line(self, screen: Screen) -> str:
        """Returns the result as a line of text, with the level in colour on a terminal."""
        level = screen.style(f"{self.level:<6}", _COLOURS[self.level])
        return f"{level}  {self.about}: {self.text}{f'; {self.todo}' if self.todo else ''}"

    def document(self) -> dict[str, Any]:
        """Returns the result as a dict for `--json`."""
        return asdict(self)
