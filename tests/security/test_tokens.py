"""The token: who needs it, where it may travel, and that nobody ever sees it."""

from __future__ import annotations

import logging
import os

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from anchor_server import serve
from anchor_server.tokens import ALL_RIGHTS, Access, Grant, hash_of
from anchorlib.errors import OptionError
from anchorlib.wire import Address, Credentials, ReaderClient, open_channel
from tests.cli.made import anchor
from tests.server.processes import called, run, served
from tests.warm import warm_python

CANARY = "c4n4ry-T0KEN.that/must+never=appear"


@pytest.mark.parametrize("host", ["collector.example", "10.1.2.3", "0.0.0.0", "2001:db8::1"])
def test_a_token_never_crosses_a_network_in_plain_text(host):
    credentials = Credentials(token=CANARY)
    with pytest.raises(OptionError, match="in plain text; write grpcs://") as caught:
        open_channel(Address(host), credentials)
    assert CANARY not in str(caught.value)
    open_channel(Address(host, tls=True), credentials).close()
    open_channel(Address(host), Credentials()).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_on_this_machine_a_token_may_travel_in_plain_text(host):
    open_channel(Address(host), Credentials(token=CANARY)).close()


def test_the_command_line_refuses_it_too_in_one_line(monkeypatch):
    monkeypatch.setenv("ANCHOR_TOKEN", CANARY)
    done = anchor("names", "grpc://192.0.2.1:50051/run1")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert CANARY not in done.err


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_token_file_that_others_can_read_is_refused(tmp_path, mode):
    file = tmp_path / "token"
    file.write_text(CANARY)
    file.chmod(mode)
    with pytest.raises(OptionError, match="chmod 600") as caught:
        Credentials.from_environment({"ANCHOR_TOKEN_FILE": str(file)})
    assert CANARY not in str(caught.value)
    file.chmod(0o600)
    assert Credentials.from_environment({"ANCHOR_TOKEN_FILE": str(file)}).token == CANARY


def test_a_mounted_secret_that_is_lent_to_a_group_is_read(tmp_path, monkeypatch):
    """As Kubernetes mounts it under fsGroup: another owner's, 0440, behind a link."""
    file, link = tmp_path / "..data", tmp_path / "token"
    file.write_text(CANARY)
    link.symlink_to(file)
    monkeypatch.setattr("os.geteuid", lambda: file.stat().st_uid + 1)
    for mode in (0o440, 0o640, 0o400):
        file.chmod(mode)
        assert Credentials.from_environment({"ANCHOR_TOKEN_FILE": str(link)}).token == CANARY
    for mode in (0o444, 0o460):
        file.chmod(mode)
        with pytest.raises(OptionError, match="others than its owner"):
            Credentials.from_environment({"ANCHOR_TOKEN_FILE": str(link)})


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []

    def constant(*pair: bytes) -> bool:
        compared.append(pair)
        return False

    monkeypatch.setattr("anchor_server.tokens.compare_digest", constant)
    shown, other = hash_of(CANARY.encode()), hash_of(b"other")
    grants = tuple(
        Grant(f"t{n}", ALL_RIGHTS, ("*",), (one,)) for n, one in enumerate((shown, other))
    )
    # The right token: only what compare_digest says counts, and each hash is compared.
    assert Access(grants).of_shown(CANARY.encode(), ()) is None
    assert compared == [(shown, shown), (shown, other)]


WRONG = [
    (),
    (("authorization", ""),),
    (("authorization", CANARY),),
    (("authorization", f"bearer {CANARY}"),),
    (("authorization", f"Bearer {CANARY} "),),
    (("authorization", f"Bearer {CANARY[:-1]}"),),
    (("authorization", f"Bearer {CANARY}x"),),
    (("authorization-bin", f"Bearer {CANARY}".encode()),),
    (("authorization", "Bearer " + "x" * 4000),),
]


@pytest.mark.parametrize("metadata", WRONG)
def test_nothing_but_the_token_itself_opens_the_door(tmp_path, metadata):
    with (
        serve(tmp_path, token=CANARY) as collector,
        grpc.insecure_channel(collector.address) as channel,
    ):
        for method in (
            "/anchorlib.wire.v1.Reader/List",
            "/anchorlib.wire.v1.Reader/Get",
            "/anchorlib.wire.v1.Collector/Push",
            "/grpc.health.v1.Health/Watch",
            "/nothing/Here",
        ):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(b"", metadata=metadata, timeout=10)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_health_check_needs_no_token(tmp_path):
    with (
        serve(tmp_path, token=CANARY) as collector,
        grpc.insecure_channel(collector.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_credentials_and_clients_never_show_it():
    credentials = Credentials(token=CANARY)
    with ReaderClient("grpc://127.0.0.1:1", credentials) as client:
        shown = [repr(credentials), str(credentials), repr(client), str(client)]
    assert not [text for text in shown if CANARY in text]


TRAINING = """
import logging, os, sys, torch, anchorlib
logging.basicConfig(level=logging.DEBUG)
model = torch.nn.Linear(4, 2)
with anchorlib.start("run1", store=sys.argv[1]) as session:
    session.watch(model, tensors="*")
    for step in range(3):
        loss = model(torch.ones(3, 4)).sum()
        anchorlib.anchor(loss, "loss")
        loss.backward()
        session.step()
    session.flush(30)
    print(repr(session), session.counters)
    logging.shutdown()
"""


@pytest.mark.parametrize("given", [pytest.param("variable", marks=pytest.mark.long), "file"])
def test_a_whole_session_leaves_the_token_nowhere(tmp_path, given):
    store, spool, home = tmp_path / "store", tmp_path / "spool", tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    token = {"ANCHOR_TOKEN": CANARY} if given == "variable" else {"ANCHOR_TOKEN_FILE": str(secret)}
    places = {"ANCHOR_SPOOL": str(spool), "HOME": str(home), "TMPDIR": str(home)}
    options = ("--log-format", "json", "--metrics-bind", "127.0.0.1:0")
    with served(store, *options, **token) as collector:
        url = f"grpc://{collector.address}"
        trained = run([warm_python(), "-c", TRAINING, url], **token, **places)
        assert trained.returncode == 0, trained.stderr
        asked = [
            called("verify", f"{url}/run1", "--json", **token),
            called("names", f"{url}/run1", ANCHOR_TOKEN="wrong"),
            called("names", f"{url}/nothing", ANCHOR_DEBUG="1", **token),
        ]
        assert [one.returncode for one in asked][:2] == [0, 4]
        command = _command_line(collector.process.pid)
        ended = collector.end()
    said = [command, collector.line, *map(str, ended), trained.stdout, trained.stderr]
    said += [one.stdout + one.stderr for one in asked]
    assert not [text for text in said if CANARY in text]
    assert not list(_holding(tmp_path, CANARY.encode(), besides=secret))


def test_a_server_that_crashes_over_a_bad_setting_does_not_show_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_TOKEN", CANARY)
    done = anchor("serve", "--store", tmp_path, "--bind", "nonsense")
    assert (done.code, CANARY in done.out + done.err) == (2, False)
    monkeypatch.setenv("ANCHOR_TOKEN", "bad\ntoken")
    broken = anchor("serve", "--store", tmp_path, "--bind", "127.0.0.1:0")
    assert (broken.code, broken.err.count("\n")) == (2, 1)
    assert "bad" not in broken.err.removeprefix("anchor: ")


def test_the_log_of_a_refused_call_does_not_repeat_what_was_shown(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "anchor_server")
    with (
        serve(tmp_path, token="right") as collector,
        grpc.insecure_channel(collector.address) as channel,
    ):
        shown = (("authorization", f"Bearer {CANARY}"),)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/anchorlib.wire.v1.Reader/List")(b"", metadata=shown, timeout=10)
    assert "refused a call without the token" in caplog.text
    assert CANARY not in caplog.text


def _command_line(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def _holding(folder, secret: bytes, *, besides):
    for path, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(path, name)  # noqa: PTH118
            if file != str(besides):
                with open(file, "rb") as content:  # noqa: PTH123
                    if secret in content.read():
                        yield file
