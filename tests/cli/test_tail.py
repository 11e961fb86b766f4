"""`anchor tail`: records as they arrive."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess

import numpy as np
import pytest

from anchorlib.record import Gap
from anchorlib.store import Writer
from tests.cli.made import COMMAND, HOSTILE, anchor, environment, make_run, record
from tests.writing import put


def test_a_closed_run_shows_its_last_records_and_ends(tmp_path):
    make_run(tmp_path, [record(step=step) for step in range(30)])
    done = anchor("tail", "run1", "--store", tmp_path)
    assert (done.code, done.err) == (0, "")
    head, *lines = done.out.splitlines()
    assert head.split() == ["step", "pass", "call", "min", "max", "l2", "tensor"]
    assert [line.split()[0] for line in lines] == [str(step) for step in range(20, 30)]
    assert lines[0].split()[1:] == ["0", "0", "-0.25", "3", "3.052", "fc2.bias@grad"]
    assert len(anchor("tail", "run1", "-n", 3, "--store", tmp_path).out.splitlines()) == 4


def test_json_is_a_document_a_record_as_stats_has_them(tmp_path):
    values = np.array([np.nan, np.inf, 1], np.float32)
    make_run(tmp_path, [record(step=0), record(HOSTILE, raw=values, step=1)])
    lines = anchor("tail", "run1", "--json", "--store", tmp_path).out.splitlines()
    told = [json.loads(line) for line in lines]
    stats = [
        anchor("stats", "run1", "-t", name, "--json", "--store", tmp_path).json[0]
        for name in ("fc2.bias", HOSTILE)
    ]
    assert told == stats


def test_selectors_choose_and_need_not_be_there_yet(tmp_path):
    make_run(tmp_path, [record(), record("loss", "value")])
    done = anchor("tail", "run1", "lo*", "yet.to.come@grad", "--store", tmp_path)
    assert done.out.count("\n") == 2
    assert done.out.endswith("loss@value\n")


def test_names_are_escaped_and_what_is_not_finite_is_told(tmp_path):
    make_run(tmp_path, [record(HOSTILE, raw=np.array([np.nan, np.inf, 1], np.float32))])
    line = anchor("tail", "run1", "--store", tmp_path).out.splitlines()[1]
    assert line.isprintable()
    assert line.endswith("  1 nan  1 inf")


def test_gaps_are_told_as_they_are_counted(tmp_path):
    gap = Gap("fc1", "grad", "all", "the queue was full", 3, 0, 4)
    make_run(tmp_path, [record()], gaps=[gap])
    done = anchor("tail", "run1", "--store", tmp_path)
    assert done.err == "anchor: fc1@grad lacks 3 records: the queue was full\n"


@pytest.mark.slow
def test_a_selector_that_names_nothing_of_a_closed_run_is_a_mistake(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("weight")])
    done = subprocess.run(
        [*COMMAND, "tail", "run1", "wieght", "--store", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no tensor is named 'wieght'" in done.stderr
    assert "did you mean 'weight'" in done.stderr


@pytest.mark.slow
def test_a_live_run_is_followed_in_the_order_of_arrival_until_it_is_closed(tmp_path):
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, [record("first")])
    process = subprocess.Popen(
        [*COMMAND, "tail", "run1", "--store", tmp_path, "--json", "--interval", "0.05"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert json.loads(process.stdout.readline())["tensor"] == "first"
        names = [f"late{n}" for n in (3, 1, 2)]
        for order, name in enumerate(names, 1):
            put(writer, [record(name, order=order), record("first", order=order, step=order)])
        found = [json.loads(process.stdout.readline())["tensor"] for _ in range(6)]
        assert found == [one for name in names for one in (name, "first")]
        assert process.poll() is None
        writer.close()
        assert process.wait(60) == 0
        assert process.stdout.read() + process.stderr.read() == ""


@pytest.mark.slow
def test_ctrl_c_ends_it_with_130_and_no_word(tmp_path):
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, [record()])
    with subprocess.Popen(
        [*COMMAND, "tail", "run1", "--store", tmp_path, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stdout.read() + process.stderr.read() == ""
    writer.close()


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_it_quietly(tmp_path):
    make_run(tmp_path, [record(step=step) for step in range(2000)])
    shell = subprocess.run(
        ["bash", "-c", '"$@" | head -n 2; exit ${PIPESTATUS[0]}', "bash", *COMMAND,
         "tail", "run1", "-n", "2000", "--json"],
        env=environment(ANCHOR_STORE=str(tmp_path)), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (shell.returncode, shell.stderr, shell.stdout.count("\n")) == (0, "", 2)


def test_a_run_made_anew_under_its_name_is_seen_from_its_start(tmp_path, monkeypatch):
    make_run(tmp_path, [record(step=step) for step in range(5)])
    from anchor_cli.records.following import Following
    from anchorlib.reading import open_run

    following = Following(open_run("run1", tmp_path), lambda name, kind: True)
    assert len(list(following.records())) == 5
    assert list(following.records()) == []
    writer = Writer.open(tmp_path, "run1", 0, overwrite=True)
    put(writer, [record("anew")])
    writer.close()
    assert [one["tensor"] for one in following.records()] == ["anew"]


@pytest.mark.slow
def test_a_terminal_has_rates_under_the_rows(tmp_path):
    make_run(tmp_path, [record(step=step) for step in range(3)])
    main, other = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "tail", "run1", "--store", tmp_path],
        stdout=other, stderr=other, env=environment(COLUMNS="80", TERM="xterm"),
    )  # fmt: skip
    os.close(other)
    text = b""
    try:
        while part := os.read(main, 4096):
            text += part
    except OSError:  # what Linux says at the end of a terminal
        pass
    assert process.wait(60) == 0
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", text.decode())
    assert "3 records, 0/s; step 2, 0/s; 0 not recorded" in plain
