"""What version 0.1.0 says, which spoke the protocol before this one, is taken as it stands."""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from anchor_cli.main import main
from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.reading import open_run
from anchorlib.spool.dead_spool import SpoolContent
from anchorlib.spool.destination import Destination
from anchorlib.spool.format import SegmentEntry
from anchorlib.spool.spools import OwnedSpool, make_spool
from anchorlib.store import LocalLocation, RankReader
from anchorlib.wire import (
    PROTOCOL,
    PROTOCOLS,
    Credentials,
    Encoder,
    Hello,
    PushReply,
    open_channel,
    parse_address,
)
from anchorlib.wire.connection.services import parse_reply, push_call
from tests.anchorlib.spool.spooling import entries
from tests.anchorlib.store.records import assert_holds
from tests.fixtures.protocol2 import EDGE, GAP, HEADER, LEARNED, SAID, messages
from tests.server.pushing import Pusher

FIXTURE = Path(__file__).parents[1] / "fixtures" / "protocol2.tar.xz"


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> Path:
    """Where the stream and the spool of 0.1.0 are unpacked; tests leave them as they are."""
    folder = tmp_path_factory.mktemp("left")
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def spool(left, tmp_path) -> Path:
    """A copy of the spool."""
    (found,) = (left / "spool").iterdir()
    return shutil.copytree(found, tmp_path / "spools" / found.name)


def say(address: str, said: Sequence[bytes]) -> list[PushReply]:
    """Says these messages on one stream, as they are; the answers."""
    with open_channel(parse_address(f"grpc://{address}"), Credentials()) as channel:
        return [parse_reply(one) for one in push_call(channel)(iter(said), timeout=30)]


def check_all(store: Path) -> None:
    """The run is what was said: records, gap, lineage and header."""
    reader = RankReader(LocalLocation(store / "run1.zarr"), 0)
    assert_holds(reader, SAID)
    catalogue = reader.catalogue
    assert list(catalogue.gaps.values()) == [GAP]
    assert open_run("run1", store).edges(0) == [EDGE]
    (attempt,) = catalogue.attempts
    assert dict(attempt.header) == {**HEADER, **LEARNED}
    assert catalogue.state == "closed"


def test_a_stream_of_the_version_before_is_stored_whole(left, tmp_path):
    said = messages((left / "stream").read_bytes())
    with serve(tmp_path / "store") as collector:
        answers = say(collector.address, said)
    assert answers[-1].closed.committed == len(SAID)
    check_all(tmp_path / "store")


@pytest.mark.parametrize("cut", [2, 6, -3])
def test_such_a_stream_that_is_cut_goes_on_where_it_was(left, tmp_path, cut):
    said = messages((left / "stream").read_bytes())
    with serve(tmp_path / "store") as collector:
        say(collector.address, said[:cut])
        assert say(collector.address, said)[-1].closed.committed == len(SAID)
    check_all(tmp_path / "store")


def test_such_a_writer_is_told_nothing_that_it_does_not_know(left, tmp_path):
    said = messages((left / "stream").read_bytes())
    with serve(tmp_path / "store") as collector:
        for answer in say(collector.address, said):
            assert answer.WhichOneof("message") in ("resume", "ack", "flushed", "closed")


@pytest.mark.parametrize("where", ["collector", "directory"])
def test_a_spool_of_the_version_before_is_pushed(spool, tmp_path, where):
    with serve(tmp_path / "store") as collector:
        to = f"grpc://{collector.address}" if where == "collector" else str(tmp_path / "store")
        assert main(["push", str(spool), "--to", to]) == 0
    check_all(tmp_path / "store")
    assert not spool.exists()


def test_who_delivers_such_a_spool_speaks_the_version_of_today(spool, tmp_path):
    work = OwnedSpool.take(spool)
    content = SpoolContent(work, Destination(str(tmp_path)), threading.Condition())
    assert (content.notes.hello.protocol, content.hello(()).protocol) == (PROTOCOL - 1, PROTOCOL)
    content.frames.close()
    work.release()


@pytest.mark.parametrize("brought", [3, 5])
def test_of_such_a_spool_what_is_there_is_confirmed_and_the_rest_comes(spool, tmp_path, brought):
    (segment,) = spool.glob("*.seg")
    kept = [one.message for one in entries(segment.read_bytes()) if isinstance(one, SegmentEntry)]
    with serve(tmp_path / "store") as collector:
        some = say(collector.address, kept[:brought])[-1].ack.committed
        assert 0 < some < len(SAID)
        assert main(["push", str(spool), "--to", f"grpc://{collector.address}"]) == 0
    check_all(tmp_path / "store")


@pytest.mark.parametrize(
    ("version", "first"),
    [
        (PROTOCOLS[0] - 1, "upgrade anchorlib where the training runs"),
        (PROTOCOL + 1, "upgrade the collector first"),
        (0, "upgrade anchorlib where the training runs"),
    ],
)
def test_who_is_outside_the_window_is_told_what_both_speak_and_what_to_upgrade(
    tmp_path, version, first
):
    with serve(tmp_path / "store") as collector, Pusher(collector.address, protocol=version) as one:
        code, words = one.refusal()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    both = f"version {version} of the protocol, this collector {PROTOCOL - 1} and {PROTOCOL}: "
    assert both + first in words
    assert not (tmp_path / "store" / "run1.zarr").exists()


@pytest.mark.parametrize(
    ("version", "first"),
    [(PROTOCOLS[0] - 1, "push it into a directory"), (PROTOCOL + 1, "upgrade anchorlib here")],
)
@pytest.mark.parametrize("where", ["collector", "directory"])
def test_a_spool_outside_the_window_is_left_as_it_is(tmp_path, capfd, version, first, where):
    hello = Hello(protocol=version, run="run1", rank=0, writer_id=os.urandom(16), header="{}")
    written = make_spool(tmp_path / "spools", hello, "grpc://127.0.0.1:1")
    encoder = Encoder()
    frames = written.connect(encoder, [], threading.Condition())
    for frame in encoder.encode(block_of(SAID[:3])):
        frames.store(frame, more=False)
    written.leave()
    with serve(tmp_path / "store") as collector:
        to = f"grpc://{collector.address}" if where == "collector" else str(tmp_path / "store")
        assert main(["push", str(written.folder), "--to", to]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    both = f"version {version} of the protocol, this anchorlib {PROTOCOL - 1} and "
    assert both in line
    assert first in line
    assert list(written.folder.glob("*.seg"))
    assert not (tmp_path / "store" / "run1.zarr").exists()
