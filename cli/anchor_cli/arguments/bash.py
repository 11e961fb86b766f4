"""Completion in bash, which splits the words of a command line also at = : and @.

Selectors and URLs contain these characters. While a person types this line (| is the cursor), bash
asks for completions of the word number COMP_CWORD of COMP_WORDS:

    anchor hist --tensor fc.bias@g| grpc://host:1/run1
    COMP_WORDS   anchor hist --tensor fc.bias @ g grpc : //host : 1/run1         COMP_CWORD 5

Before typer sees the line, the pieces of each word are joined again, and words behind the cursor
are moved before the unfinished word, so that a run or a store that they name is known. The
beginning that bash already has on its line is cut off from each completion.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Question", "asked_by_bash"]

_ASKED = ("_ANCHOR_COMPLETE", "complete_bash")
_BREAKS = re.compile("[=:@]+")


@dataclass(frozen=True, slots=True)
class Question:
    """A command line that bash asks to complete.

    words: the words of the line, the program first and the unfinished word last.
    kept: the part of the unfinished word that bash leaves on its line, so that completions must be
        printed without it; for example "fc.bias" of "fc.bias@g".
    """

    words: Sequence[str]
    kept: str = ""

    @classmethod
    def of(cls, text: str, place: int) -> Question:
        """Builds the question from what bash passes.

        text: COMP_WORDS, with its words separated by line ends.
        place: COMP_CWORD, the index in COMP_WORDS of the word that the cursor is in.
        """
        raw = _split(text)
        raw += [""] * (place + 1 - len(raw))
        groups = _together(raw)
        here = next(i for i, group in enumerate(groups) if place in group)
        words = ["".join(raw[i] for i in group) for group in groups]
        unfinished = "".join(raw[i] for i in groups[here] if i <= place)
        known = _ordered(words[:here], unfinished, words[here + 1 :])
        return cls([*known, unfinished], _kept(unfinished) if len(groups[here]) > 1 else "")


@contextlib.contextmanager
def asked_by_bash() -> Iterator[None]:
    """A context in which typer can answer a completion request of bash.

    On entry, COMP_WORDS and COMP_CWORD are rewritten for typer. When the context ends, the
    completions that typer printed in it are printed without the beginning that bash has on its line
    already. Where bash asks for no completion, the context changes nothing.
    """
    name, value = _ASKED
    if os.environ.get(name) != value:
        yield
        return
    question = Question.of(os.environ.get("COMP_WORDS", ""), int(os.environ["COMP_CWORD"]))
    os.environ["COMP_WORDS"] = shlex.join(question.words)
    os.environ["COMP_CWORD"] = str(len(question.words) - 1)
    answers = io.StringIO()
    try:
        with contextlib.redirect_stdout(answers):
            yield
    finally:
        lines = answers.getvalue().splitlines()
        sys.stdout.writelines(f"{line.removeprefix(question.kept)}\n" for line in lines)


def _split(text: str) -> list[str]:
    if "\n" not in text:
        return _unquoted(text)
    return ["".join(_unquoted(word)) for word in text.split("\n")]


def _unquoted(text: str) -> list[str]:
    """Splits text into words as a shell does, and drops quotes.

    A quote that is not closed ends at the end of the text.
    """
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            words.append(word)  # noqa: PERF402  # the words before an open quote are kept
    except ValueError:
        words.append(lexer.token)
    return words


def _together(raw: Sequence[str]) -> list[list[int]]:
    """Finds out which pieces of the line, as bash has cut it, belong to the same word.

    Returns for each word the indices of its pieces in `raw`.
    """
    groups: list[list[int]] = []
    for i, word in enumerate(raw):
        before = raw[i - 1] if i else ""
        if _BREAKS.fullmatch(word):
            # After an option only "=" joins the words: `--step :10` are two.
            joined = i > 1 and (not before.startswith("-") or word.startswith("="))
        else:
            joined = bool(word) and bool(_BREAKS.fullmatch(before))
        if joined:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _ordered(before: Sequence[str], unfinished: str, after: Sequence[str]) -> list[str]:
    """Puts the words behind the cursor in front of the unfinished word.

    Returns the first two words (program and command), then the words behind the cursor, then the
    other words before the cursor. The unfinished word itself is left out. Where the unfinished word
    is an argument, the words behind the cursor up to the first option are left out too: they are
    arguments, and typer would put one of them in the place of the unfinished argument.

    before, after: the words before and behind the unfinished word.
    """
    if len(before) < 2:
        return [*before]
    if not (before[-1].startswith("-") or unfinished.startswith("-")):
        # The unfinished word is an argument: arguments behind the cursor must not take its place.
        first = next((i for i, word in enumerate(after) if word.startswith("-")), len(after))
        after = after[first:]
    return [*before[:2], *after, *before[2:]]


def _kept(unfinished: str) -> str:
    text = unfinished.partition("=")[2] if unfinished.startswith("-") else unfinished
    last = max(text.rfind(sign) for sign in "=:@")
    # bash reads "@" as the start of a host's name, and replaces it together with the name.
    return text[:last] if text[last : last + 1] == "@" else text[: last + 1]
