"""The pages of the documentation, and the blocks of code on them.

<!-- not run: why -->      above a block that does not run
```python                  runs, in the page's one namespace
# NAME.py                  … but where it begins with a file's name, is that file
```console                 `$ ` begins a command; what else stands there is what it says
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "Command", "blocks"]

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "_build" not in page.parts
)

FENCE = re.compile(
    r"^(?P<indent> *)(?P<marks>```+|~~~+)(?P<language>[^\n`]*)\n(?P<text>.*?)^ *(?P=marks) *$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"<!--(?P<said>(?:(?!-->).)*)-->\s*\Z", re.DOTALL)
CODE = re.compile(r" +# exit code (\d+)$")


@dataclass(frozen=True)
class Command:
    """One command of a console block, with the exit code and the words that the page shows."""

    text: str
    code: int
    said: str = ""


@dataclass(frozen=True)
class Block:
    """One fenced block. why: the reason why it does not run; None where it does."""

    page: str
    line: int
    language: str
    text: str
    why: str | None

    @property
    def file(self) -> str | None:
        """The name of the file that this block is, where it is one."""
        found = re.match(r"# ([\w/]+\.py)\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block."""
        whole = re.sub(r"\\\n\s*", "", self.text)
        parts = re.split(r"^\$ ", whole, flags=re.MULTILINE)[1:]
        return [_command(*part.split("\n", 1)) for part in parts]


def _command(text: str, said: str = "") -> Command:
    """What ends with a verdict that is not expected ends with 1, as `anchor compare` does."""
    if found := CODE.search(text):
        return Command(text[: found.start()], int(found[1]), said)
    failed = text.startswith("anchor compare") and re.search(
        r"^(SUSPECT|UNEXPECTED) ", said, re.MULTILINE
    )
    return Command(text, int(bool(failed)), said)


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [_block(page, text, found) for found in FENCE.finditer(text)]


def _block(page: str, text: str, found: re.Match[str]) -> Block:
    above = COMMENT.search(text[: found.start()])
    said = " ".join(above["said"].split()) if above else ""
    why = said.removeprefix("not run:").strip() if said.startswith("not run") else None
    indent = found["indent"]
    body = re.sub(rf"^{indent}", "", found["text"], flags=re.MULTILINE) if indent else found["text"]
    line = text.count("\n", 0, found.start()) + 1
    return Block(page, line, found["language"].strip(), body, why)
