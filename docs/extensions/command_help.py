"""The directive `command-help`: a section for each command of `anchor`, with its own help.

It is asked for when the pages are built, so that they cannot fall behind the commands.
"""

from __future__ import annotations

from typing import Any

import typer.main
from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

from anchor_cli.main import app as anchor

WIDTH = 88


def commands() -> list[str]:
    """The names of the commands, as `anchor --help` lists them."""
    return list(typer.main.get_command(anchor).commands)


def help_of(command: str | None) -> str:
    """What `anchor COMMAND --help` says, or `anchor --help`."""
    words = ["--help"] if command is None else [command, "--help"]
    asked = CliRunner().invoke(anchor, words, prog_name="anchor", terminal_width=WIDTH)
    if asked.exit_code != 0:
        raise RuntimeError(f"anchor {' '.join(words)} failed: {asked.output}")
    return asked.output.strip("\n")


class CommandHelp(SphinxDirective):
    """What `anchor --help` says, then a section for each command."""

    def run(self) -> list[nodes.Node]:
        """The nodes in the place of the directive."""
        # The commands are code: a page made of their help is read anew at each build.
        self.env.note_reread()
        return [_shown(None), *map(_section, commands())]


def _section(command: str) -> nodes.section:
    section = nodes.section(ids=[f"anchor-{command}"], names=[f"anchor {command}"])
    section += nodes.title("", "", nodes.literal("", f"anchor {command}"))
    section += _shown(command)
    return section


def _shown(command: str | None) -> nodes.literal_block:
    text = help_of(command)
    return nodes.literal_block(text, text, language="text")


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
