"""Docstrings as they are written here come out as they are meant."""

from __future__ import annotations

import importlib.util
from textwrap import dedent

import pytest
import typer.main

from anchor_cli.main import app
from tests.docs.blocks import ROOT

pytest.importorskip("sphinx")


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "extensions" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(text):
    """A docstring as a page shows it, without its markup: a docutils document as text."""
    from docutils.core import publish_doctree

    lines = loaded("plain_docstrings").restructured(dedent(text).strip("\n").splitlines())
    return publish_doctree(
        "\n".join(lines), settings_overrides={"report_level": 1, "halt_level": 1}
    )


def kinds(tree):
    return [node.tagname for node in tree.children]


def test_a_list_of_names_and_meanings_is_a_list():
    tree = shown("""
        Do it.

        run: its name; else ANCHOR_RUN,
            or a time stamp.
        a, b: both of `x`.
        Raises StoreError.
    """)
    assert kinds(tree) == ["paragraph", "bullet_list", "paragraph"]
    assert [item.astext() for item in tree[1]] == [
        "run: its name; else ANCHOR_RUN,\nor a time stamp.",
        "a, b: both of x.",
    ]
    assert tree[2].astext() == "Raises StoreError."


def test_what_looks_like_markup_is_text():
    sentence = "2**e <= |x| < 2**(e+1), *shape, name_ and \\x and `code`s"
    assert shown(sentence).astext() == sentence.replace("`", "")


@pytest.mark.parametrize(
    "drawing",
    ["a ─▶ b", "    indented\n    code", "one    what it does\nother  what it does"],
)
def test_tables_and_drawings_stand_as_they_are(drawing):
    tree = shown(f"Before.\n\n{drawing}\n\nAfter.")
    assert kinds(tree) == ["paragraph", "literal_block", "paragraph"]
    assert tree[1].astext() == dedent(drawing)


def test_a_colon_in_the_middle_of_a_paragraph_begins_no_list():
    assert kinds(shown("Two lines of prose\nmore: of it")) == ["paragraph"]


@pytest.mark.slow
def test_help_is_the_commands_own():
    help_of = loaded("command_help").help_of
    for command in (None, *typer.main.get_command(app).commands):
        assert help_of(command).startswith(f"Usage: anchor {command or '[OPTIONS]'}")
