"""TLS and mTLS end to end: what works, and what people are told where it does not."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from anchor_server import Collector, ServerTLS, own_identity, serve
from anchorlib.errors import CollectorError, MissingExtraError, OptionError
from anchorlib.wire import Address, Credentials, ReaderClient, open_channel
from tests.cli.made import anchor, make_run, record
from tests.security.certificates import Pair, pair
from tests.server.processes import called, run, served


@dataclass(frozen=True)
class Authority:
    """One that signs, one that nobody trusts, and what they signed."""

    folder: Path
    root: Pair
    stranger: Pair
    server: Pair
    client: Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    folder = tmp_path_factory.mktemp("tls")
    root, stranger = pair(folder, "root"), pair(folder, "stranger")
    return Authority(
        folder, root, stranger, pair(folder, "server", root), pair(folder, "client", root)
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_run(folder, [record()])
    return folder


@pytest.fixture(scope="module")
def tls(authority, store) -> Iterator[Collector]:
    with serve(store, tls=ServerTLS(authority.server.cert, authority.server.key)) as collector:
        yield collector


@pytest.fixture(scope="module")
def mutual(authority, store) -> Iterator[Collector]:
    pem = ServerTLS(authority.server.cert, authority.server.key, authority.root.cert)
    with serve(store, tls=pem) as collector:
        yield collector


def listed(collector: Collector, scheme: str = "grpcs", **files: Path) -> list[str]:
    credentials = Credentials(**files)
    with ReaderClient(f"{scheme}://{collector.address}", credentials, timeout=10) as reader:
        return reader.list()


def refused(collector: Collector, scheme: str = "grpcs", **files: Path) -> str:
    with pytest.raises(CollectorError) as caught:
        listed(collector, scheme, **files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_client_that_trusts_the_authority_reads_over_tls(tls, authority):
    assert listed(tls, ca_file=authority.root.cert) == ["run1.zarr/"]


def test_with_mutual_tls_a_signed_client_reads(mutual, authority):
    own = {"cert_file": authority.client.cert, "key_file": authority.client.key}
    assert listed(mutual, ca_file=authority.root.cert, **own) == ["run1.zarr/"]


@pytest.mark.parametrize("ca", ["stranger", None])
def test_a_certificate_that_is_not_trusted_is_told_so(tls, authority, ca):
    files = {"ca_file": getattr(authority, ca).cert} if ca else {}
    assert "not trusted here; set ANCHOR_CA_FILE" in refused(tls, **files)


def test_a_plain_client_on_a_tls_port_is_told_to_write_grpcs(tls):
    assert f"if it speaks TLS, write grpcs://{tls.address}" in refused(tls, "grpc")


def test_a_tls_client_on_a_plain_port_is_told_to_write_grpc(store, authority):
    with serve(store) as plain:
        said = refused(plain, ca_file=authority.root.cert)
        assert f"does not speak TLS; write grpc://{plain.address}" in said


@pytest.mark.parametrize(
    ("name", "wanted", "options"),
    [
        ("expired", "its certificate has expired", {"days": -1}),
        ("elsewhere", "is for another host than 127.0.0.1", {"hosts": ("elsewhere.example",)}),
    ],
)
def test_a_bad_certificate_of_the_collector_is_named(
    store, authority, monkeypatch, name, wanted, options
):
    bad = pair(authority.folder, name, authority.root, **options)
    # It was valid when the collector began.
    monkeypatch.setattr("anchor_server.tls._check_dates", lambda *_: None)
    with serve(store, tls=ServerTLS(bad.cert, bad.key)) as collector:
        assert wanted in refused(collector, ca_file=authority.root.cert)


@pytest.mark.parametrize("case", ["none", "of a stranger", "expired"])
def test_a_client_without_a_good_certificate_is_refused_and_told(mutual, authority, case):
    own: dict[str, Path] = {}
    if case != "none":
        signer = authority.root if case == "expired" else authority.stranger
        days = -1 if case == "expired" else 1
        made = pair(authority.folder, f"client-{case}", signer, days=days)
        own = {"cert_file": made.cert, "key_file": made.key}
    said = refused(mutual, ca_file=authority.root.cert, **own)
    assert "set ANCHOR_CLIENT_CERT and ANCHOR_CLIENT_KEY" in said


def test_the_command_line_says_it_in_one_line_with_exit_code_4(tls, authority, monkeypatch):
    plain = anchor("names", f"grpc://{tls.address}/run1")
    assert (plain.code, plain.out, plain.err.count("\n")) == (4, "", 1)
    assert f"grpcs://{tls.address}" in plain.err
    url = f"grpcs://{tls.address}/run1"
    # A process of its own, to which gRPC would write what it thinks of the certificate.
    done = called("names", url, ANCHOR_CA_FILE=str(authority.stranger.cert))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    monkeypatch.setenv("ANCHOR_CA_FILE", str(authority.root.cert))
    trusting = anchor("names", url)
    assert (trusting.code, trusting.err) == (0, "")


def test_files_that_are_no_certificates_are_refused_at_once(authority, tmp_path):
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing")
    address = Address("127.0.0.1", tls=True)
    for files in (
        {"ca_file": junk},
        {"cert_file": junk, "key_file": authority.client.key},
        {"cert_file": authority.client.cert, "key_file": authority.server.key},
    ):
        with pytest.raises(OptionError, match="no certificate that can be used"):
            open_channel(address, Credentials(**files))
    for pem in (
        ServerTLS(junk, authority.server.key),
        ServerTLS(authority.server.cert, authority.client.key),
        ServerTLS(authority.server.cert, authority.server.key, junk),
    ):
        with pytest.raises(OptionError, match="cannot be used"):
            Collector(tmp_path / "store", "127.0.0.1:0", tls=pem)


def test_half_of_a_clients_pair_is_refused(authority):
    with pytest.raises(OptionError, match="go together"):
        Credentials(cert_file=authority.client.cert)
    with pytest.raises(OptionError, match="go together"):
        Credentials.from_environment({"ANCHOR_CLIENT_KEY": "key.pem"})


# -- the collector's own certificate


def test_self_signed_prints_the_lines_that_make_a_client_work(store):
    with served(store, "--self-signed", bind="127.0.0.1:0") as collector:
        exports = [collector.process.stderr.readline() for _ in range(4)][1:]
        names = ("ANCHOR_STORE", "ANCHOR_CA_FILE", "ANCHOR_TOKEN_FILE")
        said = dict(shlex.split(line)[1].split("=", 1) for line in exports)
        assert tuple(said) == names
        token = Path(said["ANCHOR_TOKEN_FILE"]).read_text().strip()
        shell = run(["sh", "-c", "".join(exports) + "exec $0 -m anchor_cli names run1", _python()])
        assert (shell.returncode, shell.stderr) == (0, "")
        without = {name: said[name] for name in names[:2]}
        done = called("names", "run1", **without)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1)
        assert "ANCHOR_TOKEN" in done.stderr
        code, out, err = collector.end()
    assert code == 0
    assert len(token) >= 32
    assert token not in collector.line + "".join(exports) + out + err + done.stderr


def _python() -> str:
    import sys

    return sys.executable


def test_self_signed_guards_a_bind_beyond_loopback(store):
    with served(store, "--self-signed", bind="0.0.0.0:0") as collector:
        assert collector.address.startswith("0.0.0.0:")
        assert collector.end()[0] == 0


def test_what_was_made_is_for_the_owner_alone_and_lasts(tmp_path):
    first = own_identity(tmp_path, "127.0.0.1")
    held = {path: path.read_bytes() for path in (first.cert_file, first.key_file, first.token_file)}
    for path in held:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.is_relative_to(tmp_path / ".anchor")
    assert stat.S_IMODE(first.cert_file.parent.stat().st_mode) == 0o700
    assert own_identity(tmp_path, "127.0.0.1") == first
    assert {path: path.read_bytes() for path in held} == held


def test_a_certificate_for_another_host_is_made_anew_and_the_token_stays(tmp_path):
    first = own_identity(tmp_path, "127.0.0.1")
    before = (first.cert_file.read_bytes(), first.token_file.read_bytes())
    second = own_identity(tmp_path, "10.1.2.3")
    after = (second.cert_file.read_bytes(), second.token_file.read_bytes())
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


def test_a_certificate_that_is_about_to_end_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("anchor_server.certificates._DAYS", 20)
    first = own_identity(tmp_path, "127.0.0.1").cert_file.read_bytes()
    monkeypatch.undo()
    assert own_identity(tmp_path, "127.0.0.1").cert_file.read_bytes() != first


def test_no_key_of_a_reader_leads_to_them(tmp_path):
    identity = own_identity(tmp_path, "127.0.0.1")
    with serve(tmp_path) as collector, ReaderClient(f"grpc://{collector.address}") as reader:
        assert reader.list() == []
        for path in (identity.key_file, identity.token_file):
            with pytest.raises(CollectorError, match="no key of a store"):
                reader.get(str(path.relative_to(tmp_path)))


def test_without_cryptography_self_signed_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(MissingExtraError, match=r"anchorlib\[tls\]"):
        own_identity(tmp_path, "127.0.0.1")


def test_self_signed_and_a_certificate_of_ones_own_exclude_each_other(tmp_path):
    options = ("--self-signed", "--tls-cert", "c.pem", "--tls-key", "k.pem")
    done = anchor("serve", "--store", tmp_path, *options)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "leave out --tls-cert" in done.err
