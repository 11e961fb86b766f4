"""What a collector says of those whom it does not let in, and what they say themselves."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_server import Collector, ServerTLS, serve
from anchor_server.certificate_dates import validities
from anchorlib.errors import CollectorError, OptionError
from anchorlib.wire import Address, Credentials, ReaderClient, check_private, open_channel
from tests.cli.made import anchor
from tests.security.certificates import Pair, pair
from tests.server.processes import called, run, served
from tests.server.test_faults import small_disk
from tests.waiting import until
from tests.warm import warm_python


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Pair:
    return pair(tmp_path_factory.mktemp("tls"), "root")


@pytest.fixture
def signed(tmp_path, root) -> Pair:
    return pair(tmp_path, "server", root)


@pytest.fixture
def tls(tmp_path, signed) -> Iterator[Collector]:
    with serve(tmp_path / "store", tls=ServerTLS(signed.cert, signed.key)) as collector:
        yield collector


def port_of(collector: Collector) -> int:
    return int(collector.address.rpartition(":")[2])


def listed(collector: Collector, ca: Path, **shown: object) -> list[str]:
    credentials = Credentials(ca_file=ca, **shown)
    with ReaderClient(f"grpcs://{collector.address}", credentials, timeout=10) as reader:
        return reader.list()


def warned(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


# -- one line, with time and peer, and a metric


def plain_text(collector, root, folder) -> None:
    with socket.create_connection(("127.0.0.1", port_of(collector))) as line:
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while line.recv(100):
            pass


def distrustful(collector, root, folder) -> None:
    with pytest.raises(CollectorError):
        listed(collector, pair(folder, "stranger").cert)


def probing(collector, root, folder) -> None:
    socket.create_connection(("127.0.0.1", port_of(collector))).close()


@pytest.mark.parametrize("client", [plain_text, distrustful, probing])
def test_a_handshake_that_fails_is_one_warning_with_its_peer_and_counted(
    tls, root, tmp_path, caplog, client
):
    client(tls, root, tmp_path)
    until(lambda: tls.tally.refused["handshake"])
    assert len(warned(caplog)) == 1
    assert "TLS handshake failed" in warned(caplog)[0]
    assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", caplog.records[0].peer)


def test_a_machine_that_fails_again_and_again_is_told_once_a_minute_and_counted(
    tls, root, tmp_path, caplog
):
    probing(tls, root, tmp_path)
    until(lambda: tls.tally.refused["handshake"])
    files = len(list(Path("/dev/fd").iterdir()))
    for _ in range(30):
        probing(tls, root, tmp_path)
    until(lambda: tls.tally.refused["handshake"] == 31)
    assert len(warned(caplog)) == 1
    assert len(list(Path("/dev/fd").iterdir())) <= files + 5


def test_who_comes_in_is_not_taken_for_a_failure(tls, root, caplog):
    for _ in range(5):
        assert listed(tls, root.cert) == []
    channel = open_channel(
        Address("127.0.0.1", port_of(tls), tls=True), Credentials(ca_file=root.cert)
    )
    with channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/anchorlib.wire.v1.Reader/Get")(b"junk", timeout=10)
    time.sleep(1)
    assert dict(tls.tally.refused) == {"damaged": 1}  # what it said, not how it came in
    assert [line for line in warned(caplog) if "checksum" not in line] == []


def test_a_wrong_token_is_one_warning_with_its_peer_and_counted(tmp_path, caplog):
    with serve(tmp_path, token="right") as collector:
        for token in ("wrong", "wr0ng", None):
            credentials = Credentials(token=token)
            with (
                ReaderClient(f"grpc://{collector.address}", credentials, timeout=10) as reader,
                pytest.raises(CollectorError),
            ):
                reader.list()
        assert collector.tally.refused["token"] == 3
    assert warned(caplog) == ["refused a call without the token"]
    assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", caplog.records[0].peer)


def test_the_lines_have_the_time_and_nothing_else_is_on_stderr(tmp_path, root, signed):
    options = ("--tls-cert", str(signed.cert), "--tls-key", str(signed.key))
    with served(tmp_path / "store", *options, ANCHOR_TOKEN="right") as collector:
        url = f"grpcs://{collector.address}"
        for ca, token in ((pair(tmp_path, "stranger").cert, "right"), (root.cert, "wrong")):
            with (
                ReaderClient(url, Credentials(ca_file=ca, token=token), timeout=10) as reader,
                pytest.raises(CollectorError),
            ):
                reader.list()
            time.sleep(1)
        code, _, err = collector.end()
    assert code == 0
    lines = err.splitlines()
    assert len(lines) == 2
    for line, words in zip(lines, ("handshake failed", "without the token"), strict=True):
        assert words in line
        found = re.search(r"\(peer=ipv4:127\.0\.0\.1:\d+ time=(\S+)\)$", line)
        assert found
        assert abs(datetime.fromisoformat(found[1]) - datetime.now(UTC)) < timedelta(minutes=5)


TRAINING = """
import sys, torch, anchorlib, time
with anchorlib.start("run1", store=sys.argv[1]) as session:
    for step in range(20):
        anchorlib.anchor(torch.ones(4), "x")
        session.step()
        time.sleep(0.2)
    session.close(2)
"""


def test_a_trainer_that_trusts_another_authority_says_one_sentence(tmp_path, tls):
    told = run(
        [warm_python(), "-c", TRAINING, f"grpcs://{tls.address}"],
        ANCHOR_CA_FILE=str(pair(tmp_path, "stranger").cert),
        ANCHOR_SPOOL=str(tmp_path / "spool"),
    )
    assert told.returncode == 0
    assert "ssl_transport_security" not in told.stderr
    assert told.stderr.count("its certificate is not trusted here; set ANCHOR_CA_FILE") == 1
    assert all(line.startswith("anchorlib: ") for line in told.stderr.splitlines()), told.stderr


# -- what a collector does not start with


def test_a_certificate_that_has_expired_or_is_not_valid_yet_is_refused(tmp_path, root, monkeypatch):
    good, expired = pair(tmp_path, "good", root), pair(tmp_path, "expired", root, days=-1)
    with pytest.raises(OptionError, match=r"has expired on \d{4}-\d\d-\d\d: renew it"):
        Collector(tmp_path / "store", "127.0.0.1:0", tls=ServerTLS(expired.cert, expired.key))
    tls = ServerTLS(good.cert, good.key, expired.cert)
    with pytest.raises(OptionError, match="has expired"):
        Collector(tmp_path / "store", "127.0.0.1:0", tls=tls)

    class Early(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - timedelta(days=30)

    monkeypatch.setattr("anchor_server.tls.datetime", Early)
    with pytest.raises(OptionError, match="is the clock right"):
        Collector(tmp_path / "store", "127.0.0.1:0", tls=ServerTLS(good.cert, good.key))


def test_the_command_refuses_in_one_line_and_with_exit_code_2(tmp_path, root):
    expired, shared = pair(tmp_path, "expired", root, days=-1), pair(tmp_path, "shared", root)
    shared.key.chmod(0o644)
    for made, words in ((expired, "has expired"), (shared, "chmod 600")):
        files = ("--tls-cert", made.cert, "--tls-key", made.key, "--bind", "127.0.0.1:0")
        done = called("serve", "--store", tmp_path / "store", *files)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert words in done.stderr


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_store_that_cannot_be_written_is_refused_in_one_line(tmp_path, monkeypatch, code):
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("anchorlib.store.disk.store_directory.tempfile.mkstemp", fail)
    done = anchor("serve", "--store", tmp_path, "--bind", "127.0.0.1:0")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert os.strerror(code) in done.err
    assert "give another with --store" in done.err


def test_a_store_on_a_file_system_that_is_mounted_read_only_is_refused(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        remounted = ["mount", "-o", "remount,ro", str(disk)]
        if subprocess.run(remounted, check=False, capture_output=True).returncode:
            pytest.skip("nothing can be mounted read-only here")
        done = called("serve", "--store", disk, "--bind", "127.0.0.1:0")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "Read-only file system" in done.stderr


def test_a_store_that_is_full_is_collected_into_all_the_same(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("anchorlib.store.disk.store_directory.tempfile.mkstemp", full)
    with serve(tmp_path):
        pass


@given(st.integers(-4000, 40000))
def test_the_dates_of_a_certificate_are_those_that_were_written(tmp_path_factory, days):
    from cryptography import x509

    made = pair(tmp_path_factory.getbasetemp(), "dated", days=max(days, -9))
    pem = made.cert.read_bytes()
    wanted = x509.load_pem_x509_certificate(pem)
    dates = (wanted.not_valid_before_utc, wanted.not_valid_after_utc)
    assert validities((pem * 2).decode()) == [dates, dates]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused_at_both_ends(tmp_path, root, mode):
    made = pair(tmp_path, "open", root)
    made.key.chmod(mode)
    with pytest.raises(OptionError, match="chmod 600"):
        Collector(tmp_path / "store", "127.0.0.1:0", tls=ServerTLS(made.cert, made.key))
    own = Credentials(cert_file=made.cert, key_file=made.key)
    with pytest.raises(OptionError, match="chmod 600"):
        open_channel(Address("127.0.0.1", tls=True), own)


def test_a_secret_of_another_owner_may_be_lent_to_a_group_and_to_no_one_else(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.touch()
    monkeypatch.setattr("anchorlib.wire.secret_files.os.geteuid", lambda: file.stat().st_uid + 1)
    for mode, fine in ((0o440, True), (0o640, True), (0o660, False), (0o644, False)):
        file.chmod(mode)
        if fine:
            check_private(file)
            continue
        with pytest.raises(OptionError):
            check_private(file)


# -- SIGHUP


def test_sighup_reads_certificates_and_token_again_and_calls_go_on(tmp_path, root, signed):
    other = pair(tmp_path, "other", pair(tmp_path, "second-root"))
    token = tmp_path / "token"
    token.write_text("first")
    token.chmod(0o600)
    options = ("--tls-cert", str(signed.cert), "--tls-key", str(signed.key))
    options += ("--token-file", str(token), "--log-format", "text")
    with served(tmp_path / "store", *options) as collector:
        before = Credentials(ca_file=root.cert, token="first")
        with ReaderClient(f"grpcs://{collector.address}", before, timeout=10) as staying:
            assert staying.list() == []
            shutil.copy(other.cert, signed.cert)
            shutil.copy(other.key, signed.key)
            token.write_text("second")
            collector.process.send_signal(1)
            assert "were read again" in collector.process.stderr.readline()
            after = Credentials(ca_file=tmp_path / "second-root.pem", token="second")
            with ReaderClient(f"grpcs://{collector.address}", after, timeout=10) as reader:
                assert reader.list() == []
            with pytest.raises(CollectorError, match="the token is missing or wrong"):
                staying.list()  # the connection went on; what it shows is the old token
        assert collector.end()[0] == 0


def test_sighup_with_files_that_cannot_be_used_changes_nothing_and_says_so(tmp_path, root, signed):
    options = ("--tls-cert", str(signed.cert), "--tls-key", str(signed.key))
    with served(tmp_path / "store", *options) as collector:
        kept = signed.cert.read_bytes()
        expired = pair(tmp_path, "expired", root, days=-1)
        for wrong in (b"junk", expired.cert.read_bytes()):
            signed.cert.write_bytes(wrong)
            collector.process.send_signal(1)
            line = collector.process.stderr.readline()
            assert line.startswith("anchor: certificates and token stay as they were: ")
        signed.cert.write_bytes(kept)
        url = f"grpcs://{collector.address}"
        with ReaderClient(url, Credentials(ca_file=root.cert), timeout=10) as reader:
            assert reader.list() == []
        assert collector.end()[0] == 0


def test_a_renewed_certificate_is_shown_to_those_who_come_afterwards(tls, tmp_path, signed):
    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port_of(tls)))

    first = shown()
    other = pair(tmp_path, "other")
    shutil.copy(other.cert, signed.cert)
    shutil.copy(other.key, signed.key)
    assert shown() == first
    tls.renew()
    assert shown().split() == other.cert.read_text().split()
    assert stat.S_IMODE(signed.key.stat().st_mode) == 0o600
