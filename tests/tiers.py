"""What each target of the Makefile leaves out, told at its end: no test is left out in silence.

A test is in the tier of the last of its markers that stands here, else `make check` runs it:

    slow    make test         a fifth of a second of a processor, a program, a compiled model
    long    make test-long    what takes so long that nobody waits for it before each push
    wide    make diagnosis    more cases of a law of which the others have some

The hooks below are those of the tests' conftest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest
from _pytest.mark.expression import Expression

TARGETS = {"slow": "make test", "long": "make test-long", "wide": "make diagnosis"}
"""Of each tier beyond `make check`, what runs it."""

_LEFT_OUT = pytest.StashKey[Counter[str]]()
_SENT = "anchorlib_left_out"


def tier(markers: Iterable[str]) -> str:
    """The tier of a test with these markers; empty where `make check` runs it."""
    mine = set(markers)
    return next((name for name in reversed(TARGETS) if name in mine), "")


def count(config: pytest.Config, what: str) -> None:
    """Count one more of what is left out: a test of a tier (`long`), a file (`files of slow`)."""
    config.stash.setdefault(_LEFT_OUT, Counter())[what] += 1


def told(counts: Counter[str]) -> list[str]:
    """A line for each tier of which something was left out."""
    lines = []
    for name, target in TARGETS.items():
        tests, files = counts[name], counts[f"files of {name}"]
        whats = [f"{tests} {name} tests"] * bool(tests)
        whats += [f"{files} files of {name} tests"] * bool(files)
        if whats:
            lines.append(f"left out: {' and '.join(whats)}; {target} runs them")
    return lines


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count what `-m` left out, and not what `-k` did."""
    for item in items:
        markers = {mark.name for mark in item.iter_markers()}
        asked = Expression.compile(item.config.option.markexpr or "")
        if not asked.evaluate(lambda name, /, marks=markers, **_: name in marks):
            count(item.config, tier(markers))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of a worker of pytest-xdist to the process that tells them."""
    sent = getattr(session.config, "workeroutput", None)
    if sent is not None:
        sent[_SENT] = dict(session.config.stash.get(_LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take a worker's counts: each one collects the same tests."""
    config: pytest.Config = node.config  # type: ignore[attr-defined]  # of pytest-xdist
    counts = getattr(node, "workeroutput", {}).get(_SENT)
    if counts:
        config.stash[_LEFT_OUT] = Counter(counts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """Tell what was left out right above the last line, below all that others tell."""
    yield
    for line in told(config.stash.get(_LEFT_OUT, Counter())):
        terminalreporter.write_line(line)
