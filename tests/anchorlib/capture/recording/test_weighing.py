"""What a step weighs is told once for each phase, with what would make it lighter in this case."""

from __future__ import annotations

import logging

import pytest
import torch

import anchorlib
from anchorlib import All, Final, Summary
from anchorlib.capture.recording.step_bytes import size_text
from tests.recording import recording


@pytest.fixture
def told(caplog):
    """What was said of weight until now."""
    caplog.set_level(logging.INFO, "anchorlib")

    def found():
        return [
            (record.levelno, record.message.partition("weighs ")[2])
            for record in caplog.records
            if "weighs" in record.message
        ]

    return found


def megabytes(number, name="x", mode=None):
    anchorlib.anchor(torch.zeros(number * 250_000), name, mode)


def test_a_step_is_weighed_by_phase_when_the_first_has_ended(told):
    with recording() as run:
        megabytes(2)
        megabytes(1, "y")
        with run.session.phase("eval"):
            megabytes(3)
        assert told() == []
        for _ in range(3):
            run.session.step()
            megabytes(2)
    assert told() == [
        (
            logging.INFO,
            "3.0 MB in 2 records (train), 3.0 MB in 1 record (eval) on rank 0; "
            'lighter: phases=("train",), steps=range(0, 100), mode=Summary, '
            "tensors= without x (83% of it)",
        )
    ]


@pytest.mark.slow
def test_a_phase_that_comes_later_is_told_of_when_it_comes(told):
    with recording(steps=range(9)) as run:
        for step in range(4):
            megabytes(1)
            if step == 2:
                with run.session.phase("eval"):
                    megabytes(70)
            run.session.step()
    assert told() == [
        (logging.INFO, "1.0 MB in 1 record (train) on rank 0; lighter: mode=Summary"),
        (
            logging.WARNING,
            '70 MB in 1 record (eval) on rank 0; lighter: phases=("train",), mode=Summary',
        ),
    ]


def test_what_weighs_little_needs_no_advice_and_what_keeps_nothing_weighs_nothing(told):
    with recording() as run:
        anchorlib.anchor(torch.zeros(250), "x")
        megabytes(5, mode=Summary)
        run.session.step()
    assert told() == [(logging.INFO, "1.0 kB in 2 records (train) on rank 0")]


def test_the_first_step_that_has_records_is_weighed(told):
    with recording(steps=range(2, 4)) as run:
        for _ in range(6):
            megabytes(1)
            run.session.step()
    assert [line.partition(" on")[0] for _, line in told()] == ["1.0 MB in 1 record (train)"]


@pytest.mark.slow
def test_an_open_window_is_weighed_when_it_is_emitted(told):
    with recording(mode=Final(2)) as run:
        megabytes(65, mode=All)
        for _ in range(4):
            megabytes(1, "y")
            run.session.step()
    assert [line.partition(" on")[0] for _, line in told()] == ["65 MB in 1 record (train)"]


def test_a_phase_is_named_as_a_terminal_takes_it(told):
    with recording() as run:
        with run.session.phase("a\x1b[31mb"):
            megabytes(1)
        run.session.step()
    assert told()[0][1].startswith(r"1.0 MB in 1 record (a\x1b[31mb) on rank 0")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (31_600_000, "32 MB"),
        (999_600_000, "1.0 GB"),
        (2 * 10**12, "2000 GB"),
    ],
)
def test_a_size_has_a_unit_that_people_read(nbytes, text):
    assert size_text(nbytes) == text
