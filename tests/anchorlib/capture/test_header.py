"""The command in a run's header: what can be run again, without secrets."""

from __future__ import annotations

import pytest

from anchorlib.capture.header import command


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["python", "train.py", "--lr", "0.1"], ["python", "train.py", "--lr", "0.1"]),
        (["python", "-u", "-m", "pkg.train"], ["python", "-u", "-m", "pkg.train"]),
        (["python", "t.py", "--token", "abc"], ["python", "t.py", "--token", "***"]),
        (["python", "t.py", "-c", "a.yaml"], ["python", "t.py", "-c", "a.yaml"]),
    ],
)
def test_a_command_is_kept_as_it_was_typed_but_for_secrets(typed, kept):
    assert command(typed) == kept


@pytest.mark.parametrize("option", ["-c", "-Ic"])
def test_code_on_the_command_line_is_masked_whole(option):
    typed = ["python", "-u", option, "login('s3cret')", "--lr", "0.1"]
    assert command(typed, inline=True) == ["python", "-u", option, "***", "--lr", "0.1"]
