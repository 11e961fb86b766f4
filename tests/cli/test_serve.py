"""`anchor serve`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anchor_cli.arguments.amounts import parse_seconds
from anchor_cli.collector.shown_credentials import ShownCredentials
from anchorlib.errors import OptionError
from anchorlib.store import LocalLocation, RankReader
from anchorlib.wire import FailureKind
from tests.cli.made import COMMAND, anchor, environment, make_run, record, spawn
from tests.server.processes import served
from tests.server.pushing import Pusher
from tests.server.pushing import record as step_record
from tests.warm import warm_python

pytestmark = pytest.mark.slow


@contextmanager
def serving(store, *options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A collector of its own process; its first line is still to be read."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--store", str(store), "--bind", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PYTHONUNBUFFERED="", **variables),  # the line must come without its help
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            process.kill()


def ended(process, number=signal.SIGTERM) -> tuple[int, str]:
    """Send the signal; exit code and what was written after the first line."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def test_it_says_one_line_when_it_is_ready_and_answers_until_sigterm(tmp_path):
    make_run(tmp_path, [record()])
    with serving(tmp_path) as process:
        line = process.stdout.readline()
        found = re.fullmatch(r"anchor: collecting on (127\.0\.0\.1:\d+) into (.*)\n", line)
        assert found
        assert found[2] == str(tmp_path)
        url = f"grpc://{found[1]}"
        remote = anchor("names", f"{url}/run1", "--json")
        assert remote.code == 0
        assert remote.json == anchor("names", "run1", "--store", tmp_path, "--json").json
        hist = anchor("hist", "run1", "--store", url, "--tensor", "fc2.bias")
        assert (hist.code, hist.err) == (0, "")
        assert hist.out == anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias").out
        assert [run["name"] for run in anchor("runs", "--store", url, "--json").json] == ["run1"]
        wrong = anchor("names", "rnu1", "--store", url)
        assert (wrong.code, wrong.err.count("\n")) == (2, 1)
        assert "did you mean 'run1'?" in wrong.err
        assert ended(process) == (0, "")


def test_json_has_address_and_store_and_ctrl_c_ends_it_too(tmp_path):
    with serving(tmp_path / "new", "--json") as process:
        said = json.loads(process.stdout.readline())
        assert said["store"] == str(tmp_path / "new")
        assert re.fullmatch(r"127\.0\.0\.1:\d+", said["address"])
        assert ended(process, signal.SIGINT) == (0, "")


def test_a_port_in_use_is_wrong_usage_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = spawn("serve", "--store", tmp_path, "--bind", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"anchor: cannot listen on 127.0.0.1:{port}")


def test_a_collector_that_has_ended_leaves_signals_to_who_handled_them_before(tmp_path):
    """A process that called it and goes on would pass its handlers on to all that it forks."""
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        done = anchor("serve", "--store", tmp_path, "--bind", bind)
    assert (done.code, f"cannot listen on {bind}" in done.err) == (2, True)
    after = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert after == before


def test_a_token_is_asked_for_and_not_shown(tmp_path, monkeypatch):
    make_run(tmp_path, [record()])
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    with serving(tmp_path, "--token-file", str(token)) as process:
        line = process.stdout.readline()
        url = "grpc://" + line.split()[3]
        refused = anchor("names", "run1", "--store", url)
        assert refused.code == 4
        assert refused.err.count("\n") == 1
        monkeypatch.setenv("ANCHOR_TOKEN", "s3cret")
        allowed = anchor("names", "run1", "--store", url)
        assert (allowed.code, allowed.err) == (0, "")
        code, rest = ended(process)
    assert code == 0
    assert "s3cret" not in line + rest + refused.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bind", "0.0.0.0:0"], "--insecure"),
        (["--bind", "0.0.0.0:0", "--token-file", "TOKEN"], "--insecure"),
        (["--bind", "nonsense"], "host:port"),
        (["--store", "grpc://127.0.0.1:1"], "serve writes into a directory"),
        (["--tls-cert", "c.pem"], "both --tls-cert and --tls-key"),
        (["--client-ca", "c.pem"], "both --tls-cert and --tls-key"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"], "cannot read nowhere.pem"),
        (["--token-file", "nowhere"], "cannot read the token in nowhere"),
    ],
)
def test_settings_that_cannot_be_are_one_line_and_exit_2(tmp_path, options, said):
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    given = [str(token) if option == "TOKEN" else option for option in options]
    where = [] if "--store" in given else ["--store", tmp_path]
    done = anchor("serve", *where, *given)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert said in done.err


def test_a_token_that_others_can_read_is_refused(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o644)
    with pytest.raises(OptionError, match="chmod 600"):
        ShownCredentials(token, None, None).now()


@pytest.mark.parametrize("content", ["", "\n", "two\nlines", "bell\x07", "ключ"])
def test_a_file_without_a_token_is_refused_without_showing_it(tmp_path, content):
    token = tmp_path / "token"
    token.write_text(content)
    token.chmod(0o600)
    with pytest.raises(OptionError) as refused:
        ShownCredentials(token, None, None).now()
    assert not content.strip() or content.strip() not in str(refused.value)


def test_the_token_may_come_from_the_environment(tmp_path, monkeypatch):
    for name in ("ANCHOR_TOKEN", "ANCHOR_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert ShownCredentials(None, None, None).now()[0] is None
    token = tmp_path / "token"
    token.write_text("of a file")
    token.chmod(0o600)
    monkeypatch.setenv("ANCHOR_TOKEN_FILE", str(token))
    assert ShownCredentials(None, None, None).now()[0] == "of a file"
    monkeypatch.setenv("ANCHOR_TOKEN", "s3cret")
    assert ShownCredentials(None, None, None).now()[0] == "s3cret"
    assert ShownCredentials(token, None, None).now()[0] == "of a file"


def test_a_second_signal_ends_it_at_once():
    # Also where a thread would be waited for.
    code = (
        "import os, signal, threading\nfrom anchor_cli.collector.signals import Signals\n"
        "signals = Signals().__enter__()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nsignals.wait(None)\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nthreading.Event().wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_signal_that_another_thread_is_given_ends_it_too():
    code = (
        "import os, signal, threading\nfrom anchor_cli.collector.signals import Signals\n"
        "signals = Signals().__enter__()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "def other():\n"
        "    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])\n"
        "    threading.Event().wait(0.5)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=other, daemon=True).start()\nsignals.wait(None)\nprint('told')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "told\n")


@pytest.mark.slow
def test_what_a_session_sends_is_there_when_the_collector_has_ended(tmp_path):
    training = (
        "import torch, anchorlib, sys\n"
        "with anchorlib.start('run1', store=sys.argv[1]):\n"
        "    for step in range(3):\n"
        "        anchorlib.anchor(torch.full((4,), float(step)), 'h')\n"
    )
    pytest.importorskip("torch")
    with serving(tmp_path) as process:
        url = "grpc://" + process.stdout.readline().split()[3]
        env = {name: value for name, value in os.environ.items() if not name.startswith("ANCHOR_")}
        subprocess.run([warm_python(), "-c", training, url], timeout=120, check=True, env=env)
        assert ended(process) == (0, "")
    done = anchor("pull", "run1", "--store", tmp_path, "-t", "h@value", "--json")
    assert done.json["value"] == [[float(step)] * 4 for step in range(3)]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--idle-timeout", "0"),
        ("--idle-timeout", "soon"),
        ("--idle-timeout", "-5s"),
        ("--max-run-size", "much"),
        ("--max-streams", "0"),
    ],
)
def test_a_limit_that_cannot_be_is_told_and_nothing_is_served(tmp_path, option, value):
    done = anchor("serve", "--store", tmp_path, "--bind", "127.0.0.1:0", option, value)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert option in done.err


def test_streams_are_as_many_as_the_option_says(tmp_path):
    with served(tmp_path, "--max-streams", "1") as collector, Pusher(collector.address) as only:
        only.reply()  # its stream is open
        with Pusher(collector.address, rank=1) as refused:
            assert refused.kind() is FailureKind.STREAMS


def test_a_silent_stream_ends_after_the_time_of_the_option(tmp_path):
    with (
        served(tmp_path, "--idle-timeout", "0.3s") as collector,
        Pusher(collector.address) as silent,
    ):
        assert silent.kind() is FailureKind.IDLE


def test_a_run_grows_to_the_size_of_the_option(tmp_path):
    with (
        served(tmp_path, "--max-run-size", "1MB") as collector,
        Pusher(collector.address) as stream,
    ):
        for done in (8, 16):  # what is written in one go is kept whole
            stream.push(*(step_record(step, 1 << 16) for step in range(done - 8, done)))
            stream.acked(done)
    gaps = RankReader(LocalLocation(tmp_path / "run1.zarr"), 0).gaps()
    assert {gap.reason for gap in gaps} == {"max_run_size"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), (" 1 d ", 86400)]
)
def test_times_are_seconds_or_have_a_unit(text, seconds):
    assert parse_seconds(text, "--idle-timeout") == seconds
