"""Lines of a report break between names, never within one."""

from __future__ import annotations

from anchor_cli.terminal import wrapped

NAMES = ["EmbeddingBackward0", "MmBackward0"] * 4


def test_a_chain_of_names_longer_than_a_line_breaks_between_names():
    lines = wrapped(f"    {'/'.join(NAMES)} of wte@grad", 80, None, "      ")
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)
    shown = [name for line in lines for name in line.removesuffix(" of wte@grad").split("/")]
    assert [name.strip() for name in shown if name.strip()] == NAMES


def test_a_short_fraction_stays_whole():
    text = "words " * 12 + "one/two"
    assert any(line.endswith("one/two") for line in wrapped(text, 78, None))
    assert not any(line.endswith("one/") for line in wrapped(text, 78, None))


def test_wide_characters_break_between_names_too():
    names = ["模块" * 4] * 8
    lines = wrapped("/".join(names), 40, None, "")
    assert [name for line in lines for name in line.split("/") if name] == names
