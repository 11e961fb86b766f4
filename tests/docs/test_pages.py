"""Every block of code in the documentation runs, or says why it does not."""

from __future__ import annotations

import contextlib
import re

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, Command, blocks
from tests.docs.given import given
from tests.docs.reader import check_said, reading_in

# Pages whose blocks another test runs, because they need what that test has or it asks for more.
ELSEWHERE = {
    "docs/compare.md": "tests/test_compare_page.py",
    "docs/integrations.md": "tests/anchorlib/integrations/test_page.py",
}
RUN = ("python", "console")
SHELL = ("sh", "bash", "shell", "zsh")
SHOWN = ("", "text", "json", "toml", "eval-rst", "{eval-rst}", "{toctree}", "{include}")
WITH_CODE = [page for page in PAGES if any(one.language in RUN + SHELL for one in blocks(page))]
TO_RUN = [
    page
    for page in WITH_CODE
    if page not in ELSEWHERE
    and any(one.language in RUN and one.why is None for one in blocks(page))
]

# Pages that record for long, or start many programs. What most people read first is not among them.
SHORT = {"README.md", "docs/tutorial.md", "docs/guides/differ.md", "docs/guides/range.md"}
LONG = set(TO_RUN) - SHORT
SAID = {"docs/tutorial.md"}  # pages that promise what their commands say


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_language_that_runs_or_is_shown(page):
    for block in blocks(page):
        language = block.language.split()[0] if block.language else ""
        known = (*RUN, *SHOWN, "{command-help}")
        assert language in known or (language in SHELL and block.why is not None), (
            f"{page}:{block.line}: write it as python or console, or say why it is not run"
        )


@pytest.mark.parametrize("page", WITH_CODE)
def test_a_block_that_does_not_run_says_why(page):
    for block in blocks(page):
        assert block.why is None or len(block.why.split()) > 2, f"{page}:{block.line}"
        for named in re.findall(r"tests/[\w/.]+", block.why or ""):
            assert (ROOT / named.rstrip(".")).exists(), f"{page}:{block.line}: {named}"


@pytest.mark.parametrize("page", WITH_CODE)
def test_a_console_block_that_runs_has_commands(page):
    for block in blocks(page):
        if block.language == "console" and block.why is None:
            assert block.commands, f"{page}:{block.line}: commands begin with a dollar sign"


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_a_page_that_runs_elsewhere_is_named_there(page, test):
    assert page.rpartition("/")[2] in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] * (page in LONG)) for page in TO_RUN]
)
def test_what_a_page_shows_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    with reading_in(tmp_path, monkeypatch) as reader:
        reader.names.update(given())
        reader.heard = (lambda: capsys.readouterr().out) if page in SAID else None
        for block in blocks(page):
            if block.language in RUN and block.why is None:
                reader.follow(block)


def made(text, page="README.md"):
    return Block(page, 0, "console", text, None)


def test_exit_codes_are_read_off_the_page():
    block = made(
        "$ anchor compare a b\nCONFIG\nSUSPECT  The runs part\n"
        "$ anchor compare a b \\\n    --noise c\nEXPECTED  The runs part\n"
        "$ anchor verify a  # exit code 3\n"
    )
    assert [(one.text, one.code) for one in block.commands] == [
        ("anchor compare a b", 1),
        ("anchor compare a b --noise c", 0),
        ("anchor verify a", 3),
    ]


@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        ("loss 0.5\n3 records\n", True),
        ("loss\n…\n", True),
        ("loss 0.5\n", False),
        ("loss 0.5\n3 new records\n", False),
        ("loss 0.5\n3 records\nand more\n", False),
    ],
)
def test_a_command_that_says_other_words_than_the_page_shows_fails(shown, fits):
    command = Command("anchor", 0, shown)
    with contextlib.nullcontext() if fits else pytest.raises(AssertionError):
        check_said(command, "loss 0.7313\n1,200 records\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["$ anchor names nothing\n", "$ false\n", "$ anchor compare a a\nEXPECTED  The runs part\n"],
)
def test_a_command_that_ends_otherwise_than_the_page_shows_fails(text, tmp_path, monkeypatch):
    with reading_in(tmp_path, monkeypatch) as reader, pytest.raises(AssertionError):
        reader.follow(made(text))
