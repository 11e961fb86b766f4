"""A collector that is looked after: read-only, on its way out, asked whether it would start."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from anchor_cli.collector.archiving import try_archive
from anchor_server import issue_token, serve
from anchorlib import archive
from anchorlib.block import block_of
from anchorlib.errors import AnchorError, StoreError
from anchorlib.wire import Credentials, FailureKind, ReaderClient
from tests.cli.made import anchor, make_run
from tests.cli.made import record as stored_record
from tests.delivery.lines import check_store, eventually, numbered, sink_to
from tests.server.processes import served
from tests.server.pushing import Pusher, expected, record, stored
from tests.server.test_refusals import told


def looks(folder: Path) -> dict[str, tuple[int, ...]]:
    """What every file and folder looks like, times of the last change included."""
    return {
        str(path): (found.st_mode, found.st_size, found.st_ino, found.st_ctime_ns)
        for path in (folder, *folder.rglob("*"))
        for found in [path.lstat()]
    }


# -- read-only


def test_a_read_only_collector_gives_runs_out_and_changes_nothing(tmp_path):
    store = tmp_path / "store"
    make_run(store, [stored_record(step=step) for step in range(3)])
    make_run(store, [stored_record()], "open", close=False)
    interrupted = store / ".anchor" / "removed" / "old.1"
    interrupted.mkdir(parents=True)  # what a removal left that was cut short
    before = looks(store)
    with serve(store, read_only=True) as collector:
        url = f"grpc://{collector.address}"
        for words in (["names", "run1"], ["verify", "run1"], ["runs"], ["status", url]):
            where = [] if words[0] == "status" else ["--store", url]
            assert anchor(*words, *where).code == 0
        assert anchor("gc", "--keep-last", "9", "--store", url, "--dry-run").code == 0
        for words in (["rm", "run1"], ["mv", "run1", "run2"], ["gc", "--keep-last", "0"]):
            refused = anchor(*words, "--store", url)
            assert refused.code == 4
            assert "read-only" in refused.err
            assert refused.err.count("\n") == 1
        for hello in ({"run": "new"}, {"resume": True}, {"overwrite": True}):
            with Pusher(collector.address, **hello) as stream:
                assert stream.kind() is FailureKind.READ_ONLY
    assert looks(store) == before


def test_what_a_trainer_says_meanwhile_waits_and_comes_by_itself_when_it_is_over(tmp_path, caplog):
    store = tmp_path / "store"
    store.mkdir()
    before = looks(store)
    with serve(store, read_only=True) as collector:
        address = collector.address
        sink = sink_to(address, tmp_path / "spools")
        sink.put(block_of([numbered(n) for n in range(60)]))
        with eventually(60) as now:
            while not collector.tally.refused["read-only"] >= 2:
                assert now()
        assert looks(store) == before
    with serve(store, address):
        assert sink.close(60) == 0
    assert check_store(store, 60) == 60
    (line,) = [line for line in told(caplog, "anchorlib") if "read-only just now" in line]
    assert "records wait in" in line
    assert sink.dropped == 0


def test_a_read_only_collector_makes_no_store(tmp_path):
    with pytest.raises(StoreError, match="no store"), serve(tmp_path / "none", read_only=True):
        pass
    assert not (tmp_path / "none").exists()


def test_the_kind_is_one_that_passes_slowly_also_for_a_client_that_does_not_know_it():
    assert FailureKind.READ_ONLY.passing
    assert FailureKind.READ_ONLY.full
    assert not FailureKind.READ_ONLY.permanent


# -- on its way out


@pytest.fixture
def reading():
    """Somebody who reads a file again and again; `ended` is what became of his last call."""
    over = threading.Event()

    class Reading(threading.Thread):
        ended: AnchorError | None = None
        times = 0

        def begin(self, address: str) -> None:
            self.client = ReaderClient(f"grpc://{address}", credentials=Credentials())
            self.start()

        def run(self) -> None:
            try:
                while not over.wait(0.02):
                    self.client.get("run1.zarr/zarr.json")
                    self.times += 1
            except AnchorError as error:
                self.ended = error

        def stop(self) -> None:
            over.set()
            self.join()

    reader = Reading()
    yield reader
    reader.stop()


def test_after_sigterm_writers_are_drained_and_readers_end_what_they_began(tmp_path, reading):
    make_run(tmp_path, [stored_record()])
    with served(tmp_path) as collector, Pusher(collector.address, run="written") as stream:
        stream.push(record(0))
        stream.acked(1)
        reading.begin(collector.address)
        with eventually(60) as now:
            while not reading.times:
                assert now()
        collector.process.send_signal(signal.SIGTERM)
        assert stream.kind() is FailureKind.STOPPING
        assert stored(tmp_path, "written") == expected([record(0)])
        with Pusher(collector.address, run="another") as late:
            assert late.kind() is FailureKind.STOPPING
        more = reading.times + 50
        with eventually(60) as now:
            while reading.times < more:
                assert now()
                assert reading.ended is None
        reading.stop()
        assert collector.process.wait(60) == 0


# -- whether it would start


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """A port that is taken, and files that are not what they should be."""
    monkeypatch.delenv("ANCHOR_TOKEN", raising=False)
    monkeypatch.delenv("ANCHOR_TOKEN_FILE", raising=False)
    (tmp_path / "file").write_text("")
    (tmp_path / "access.toml").write_text("[[token]]\nname = 3\n")
    (tmp_path / "access.toml").chmod(0o600)
    (tmp_path / "open.toml").write_text("# nobody\n")
    (tmp_path / "open.toml").chmod(0o644)
    (tmp_path / "key.pem").write_text("no key")
    (tmp_path / "key.pem").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.chdir(tmp_path)
        yield f"127.0.0.1:{taken.getsockname()[1]}"


WRONG = {
    "a time for archiving without an archive": ["--archive-after", "5s"],
    "what stays of archived runs without an archive": ["--keep-local", "1GB"],
    "a store without conditions without an archive": ["--without-conditional-writes"],
    "a store below a file": ["--store", "file/store"],
    "a store that is a file": ["--store", "file"],
    "a store that is an address": ["--store", "grpc://127.0.0.1:1"],
    "a store to be read that is none": ["--store", "none", "--read-only"],
    "a port that is taken": ["--bind", "TAKEN"],
    "no address": ["--bind", "nonsense"],
    "a host that is not this machine": ["--bind", "192.0.2.1:0", "--insecure"],
    "everyone": ["--bind", "0.0.0.0:0"],
    "an access file that says nonsense": ["--access", "access.toml"],
    "an access file that others can read": ["--access", "open.toml"],
    "no access file": ["--access", "none.toml"],
    "no token file": ["--token-file", "none"],
    "two ways to ask": ["--token-file", "key.pem", "--access", "open.toml"],
    "no certificate": ["--tls-cert", "none.pem", "--tls-key", "key.pem"],
    "a key that is none": ["--tls-cert", "key.pem", "--tls-key", "key.pem"],
    "half of TLS": ["--tls-cert", "key.pem"],
    "no time": ["--idle-timeout", "soon"],
    "no size": ["--max-run-size", "much"],
    "no rate": ["--max-rate", "0"],
    "metrics for everyone": ["--metrics-bind", "0.0.0.0:0"],
    "metrics on a port that is taken": ["--metrics-bind", "TAKEN"],
    "a certificate of its own and another": ["--self-signed", "--tls-cert", "key.pem"],
    "a certificate of its own in what is not written": ["--self-signed", "--read-only"],
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_what_keeps_a_collector_from_starting_is_told_by_check_in_the_same_words(wrong, options):
    before = looks(Path())
    given = [wrong if option == "TAKEN" else option for option in options]
    if "--bind" not in given:
        given += ["--bind", "127.0.0.1:0"]
    checked = anchor("serve", "--check", *given)
    assert (checked.code, checked.out) == (2, "")
    assert looks(Path()) == before
    started = anchor("serve", *given)
    assert started.code == 2
    said = started.err.rstrip("\n")
    if "make the store" in said:  # why not is the system's word, which is asked by trying alone
        said = said.rpartition(": ")[0]
    assert checked.err.startswith(said)


def test_all_that_is_wrong_is_told_at_once_a_line_each(wrong):
    given = [
        *("--store", "file/store", "--bind", wrong, "--access", "open.toml"),
        *("--tls-cert", "none.pem", "--tls-key", "key.pem", "--idle-timeout", "soon"),
        *("--max-rate", "0", "--metrics-bind", wrong),
    ]
    checked = anchor("serve", "--check", *given)
    assert checked.code == 2
    lines = checked.err.splitlines()
    words = ["file/store", "open.toml", "none.pem", "--idle-timeout", "--max-rate"]
    assert [sum(word in line for line in lines) for word in words] == [1] * len(words)
    assert sum(line.startswith(f"anchor: cannot listen on {wrong}") for line in lines) == 2
    assert len(lines) == len(words) + 2
    assert anchor("serve", "--check", *given, "--json").json["starts"] is False


def test_a_port_that_both_want_is_wrong(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        bind = f"127.0.0.1:{free.getsockname()[1]}"
    checked = anchor(
        "serve", "--store", tmp_path, "--bind", bind, "--metrics-bind", bind, "--check"
    )
    assert (checked.code, checked.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("options", [[], ["--self-signed", "--bind", "0.0.0.0:0"], ["ACCESS"]])
def test_what_would_start_is_said_and_nothing_is_made(tmp_path, options):
    given = options
    if options == ["ACCESS"]:
        issue_token(tmp_path / "access.toml", "alice", ["read"], ["*"])
        given = ["--access", tmp_path / "access.toml"]
    if "--bind" not in given:
        given = [*given, "--bind", "127.0.0.1:0"]
    before = looks(tmp_path)
    checked = anchor("serve", "--store", tmp_path / "a" / "b", *given, "--check")
    assert (checked.code, checked.err) == (0, "")
    assert checked.out.startswith("anchor: would collect on ")
    reading = anchor("serve", "--store", tmp_path, *given, "--check", "--read-only")
    if "--self-signed" not in given:
        assert reading.out.startswith("anchor: would serve on 127.0.0.1:0 from ")
        assert reading.out.endswith(", read-only\n")
    assert looks(tmp_path) == before
    as_json = anchor("serve", "--store", tmp_path / "a", *given, "--check", "--json").json
    assert as_json == {"starts": True, "problems": []}


def test_check_of_an_archive_asks_and_makes_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    before = looks(tmp_path)
    given = ["serve", "--check", "--store", tmp_path / "store", "--bind", "127.0.0.1:0"]
    there = anchor(*given, "--archive", tmp_path / "not" / "mounted")
    assert there.code == 0
    assert (
        there.err == f"anchor: the archive {tmp_path}/not/mounted is not there: it would be made\n"
    )
    refused = anchor(*given, "--archive", tmp_path / "file" / "archive")
    assert refused.code == 2
    assert refused.err.startswith(f"anchor: cannot make the archive {tmp_path}/file/archive: ")
    assert refused.err.count("\n") == 1
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0.0)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert anchor(*given, "--archive", "s3://bucket/x").code == 0
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert looks(tmp_path) == before


def test_an_archive_is_tried_for_seconds_before_collecting(monkeypatch):
    tried = []
    monkeypatch.setattr(archive, "shelf_at", lambda place, limits: tried.append(limits))
    monkeypatch.setattr(archive, "checked_shelf", lambda shelf, **_: shelf)
    try_archive("s3://bucket/x", without_conditions=False)
    (limits,) = tried
    assert limits.again == 0
    assert limits.request <= 5.0


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_without_the_right_to_it_is_wrong(tmp_path, monkeypatch, there):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0 and real(path, mode))
    store = tmp_path if there else tmp_path / "new"
    checked = anchor("serve", "--store", store, "--bind", "127.0.0.1:0", "--check")
    what = "write into" if there else "make"
    assert checked.code == 2
    assert checked.err.startswith(f"anchor: cannot {what} the store {store}: ")
