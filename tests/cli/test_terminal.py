"""What the screen is taken to be, and how values become text and JSON."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import struct
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.terminal import Screen, moment, plain, size, this_screen
from tests.cli.made import COMMAND, environment, make_run, record

HUMAN = Screen(80)


class Terminal(io.StringIO):
    """A stdout that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return True


def screen_of(monkeypatch, encoding: str = "utf-8", **variables: str) -> Screen:
    """The screen that a terminal of 72 columns is taken to be."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "72", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Terminal(encoding))
    return this_screen()


def test_a_pipe_is_neither_wide_nor_coloured(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert this_screen() == Screen(None, glyphs=False, color=False)


def test_a_terminal_has_width_glyphs_and_colour(monkeypatch):
    assert screen_of(monkeypatch) == Screen(72, glyphs=True, color=True)


def test_no_color_takes_the_colour_alone(monkeypatch):
    assert screen_of(monkeypatch, NO_COLOR="1") == Screen(72, glyphs=True, color=False)


def test_a_dumb_terminal_gets_plain_ascii(monkeypatch):
    assert screen_of(monkeypatch, TERM="dumb") == Screen(72, glyphs=False, color=False)


def test_an_encoding_without_blocks_gets_ascii(monkeypatch):
    assert not screen_of(monkeypatch, "latin-1").glyphs


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (40_940_784, "39.0 MiB"),
        (3 * 2**40, "3.0 TiB"), (5000 * 2**40, "5000.0 TiB"),
    ],
)  # fmt: skip
def test_sizes_are_rounded_for_people_and_exact_for_programs(count, shown):
    assert size(count, HUMAN) == shown
    assert size(count, Screen()) == str(count)


def test_times_are_local_for_people_and_iso_8601_for_programs():
    time_ns = 1_700_000_000_500_000_000
    assert moment(time_ns, Screen()) == "2023-11-14T22:13:20+00:00"
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d", moment(time_ns, HUMAN))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@pytest.mark.slow
@given(json_like)
def test_whatever_is_said_is_strict_json_and_ascii(value):
    text = json.dumps(plain(value), allow_nan=False)
    assert text.isascii()
    assert json.loads(text) == plain(value)


def test_what_is_not_finite_is_null_and_numpy_is_unpacked():
    value = {"a": np.array([[1.5, math.nan]]), "b": np.float32(math.inf), "c": np.int64(3)}
    assert plain(value) == {"a": [[1.5, None]], "b": None, "c": 3}


def test_complex_numbers_are_pairs():
    assert plain([complex(1, math.inf)]) == [[1.0, None]]


def on_terminal(*arguments: str, columns: int, **variables: str) -> str:
    """What `anchor` writes on a pseudo-terminal of that width."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = dict(environment(PYTHONUTF8="1", TERM="xterm", **variables))
    env.pop("COLUMNS", None)
    with subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        written = b""
        while chunk := _read(ours):
            written += chunk
        assert process.wait(30) == 0
    os.close(ours)
    return written.decode().replace("\r", "")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux's way to say that the other side was closed
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("command", [["names", "run1"], ["hist", "run1", "-t", "*"], ["runs"]])
def test_on_a_real_terminal_everything_fits_its_width(tmp_path, command):
    long = ".".join(["encoder"] * 12)
    make_run(tmp_path, [record(), record(long, "opt.exp_avg_sq", mode="every_n:10:unit=step")])
    shown = on_terminal(*command, "--store", str(tmp_path), columns=60)
    assert "\x1b[1m" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 60


@pytest.mark.slow
def test_a_real_terminal_with_no_color_sees_no_escape(tmp_path):
    make_run(tmp_path, [record()])
    shown = on_terminal(
        "hist", "run1", "-t", "*", "--store", str(tmp_path), columns=80, NO_COLOR="1"
    )
    assert "\x1b" not in shown
    assert "█" in shown
