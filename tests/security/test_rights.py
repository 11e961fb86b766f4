"""Who may do what: every call with every right, and people who try what is not theirs."""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_server import Collector, ServerTLS, issue_token, serve
from anchor_server.access_file import AccessFile
from anchor_server.gate import CALLS, Open
from anchor_server.handlers import behind
from anchor_server.tokens import ALL_RIGHTS, Grant, Right, parse_access
from anchorlib.block import block_of
from anchorlib.errors import CollectorError, OptionError, RunNotFoundError
from anchorlib.store import rename_run, run_author, run_directory
from anchorlib.wire import (
    Credentials,
    FailureKind,
    KeeperClient,
    MeasureRequest,
    PushRequest,
    ReaderClient,
    sealed,
)
from anchorlib.wire.connection.services import keep_call
from anchorlib.wire.v1.collector_pb2 import DESCRIPTOR, Close
from tests.cli.made import anchor
from tests.delivery.lines import sink_to, spools
from tests.security.certificates import pair
from tests.server.pushing import Pusher, expected, record, stored
from tests.waiting import until

OTHER = b"o" * 16
RIGHTS = [set(some) for n in range(1, 5) for some in itertools.combinations(Right, n)]


class Tokens:
    """An access file, and the tokens that it knows."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.of: dict[str, str] = {}

    def add(self, name: str, rights: set[Right] | str, runs: str = "*") -> str:
        rights = rights.split() if isinstance(rights, str) else sorted(rights)
        self.of[name] = issue_token(self.file, name, rights, runs.split())
        return self.of[name]

    def revoke(self, name: str) -> None:
        """Remove its table, as an editor does that writes the file anew."""
        head, *tables = self.file.read_text().split("[[token]]")
        kept = [table for table in tables if f'name = "{name}"' not in table]
        self.file.write_text("[[token]]".join([head, *kept]))


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file counts as changed when two looks saw the same: a collector takes a second for them."""
    monkeypatch.setattr("anchor_server.access_file._LOOK_SECONDS", 0.02)


@pytest.fixture
def tokens(tmp_path) -> Tokens:
    made = Tokens(tmp_path / "access.toml")
    made.add("alice", "read write", "alice-* shared")
    made.add("bob", "read write", "* shared")
    made.add("reader", "read", "alice-*")
    made.add("chief", "read write replace", "*")
    return made


@pytest.fixture
def collector(tmp_path, tokens) -> Iterator[Collector]:
    with serve(tmp_path / "store", access=tokens.file) as collector:
        yield collector


def recorded(collector: Collector, token: str, run: str, **hello: object) -> FailureKind | None:
    """One record, and the rank is closed; as what kind of failure that ended."""
    with Pusher(collector.address, token=token, run=run, **hello) as stream:
        stream.push(record(0))
        stream.send(sealed(PushRequest(close=Close())))
        return stream.kind()


def reading(collector: Collector, token: str) -> ReaderClient:
    return ReaderClient(f"grpc://{collector.address}", Credentials(token=token), timeout=10)


@contextmanager
def keeping(collector: Collector, token: str) -> Iterator[KeeperClient]:
    keeper = KeeperClient(f"grpc://{collector.address}", Credentials(token=token))
    try:
        yield keeper
    finally:
        keeper.close()


def asked(collector: Collector, token: str, key: str) -> FailureKind | None:
    """How a collector answers who asks for a file."""
    with reading(collector, token) as reader:
        try:
            reader.get(key)
        except CollectorError as error:
            return error.kind
        return None


# -- each call, each right


def called(channel: grpc.Channel, method: str, token: str) -> grpc.StatusCode:
    """With what an empty message is answered: who may not call is not told that it is damaged."""
    metadata = (("authorization", f"Bearer {token}"),)
    answers = channel.stream_stream(method)(iter([b""]), metadata=metadata, timeout=20)
    try:
        next(answers)
    except grpc.RpcError as error:
        return error.code()
    answers.cancel()
    return grpc.StatusCode.OK


def test_each_call_passes_with_its_right_and_with_no_other(tmp_path):
    tokens = Tokens(tmp_path / "access.toml")
    for number, rights in enumerate(RIGHTS):
        tokens.add(f"t{number}", rights)
    with (
        serve(tmp_path / "store", access=tokens.file) as collector,
        grpc.insecure_channel(collector.address) as channel,
    ):
        for (number, rights), (method, need) in itertools.product(enumerate(RIGHTS), CALLS.items()):
            code = called(channel, method, tokens.of[f"t{number}"])
            passed = code is not grpc.StatusCode.PERMISSION_DENIED
            assert passed is (isinstance(need, Open) or need in rights), (method, rights)
        assert called(channel, "/nothing/Here", "wrong") is grpc.StatusCode.UNAUTHENTICATED
        assert called(channel, "/nothing/Here", tokens.of["t0"]) is grpc.StatusCode.UNIMPLEMENTED


def test_every_call_of_the_protocol_stands_in_the_table():
    said = {
        f"/{service.full_name}/{method.name}"
        for service in DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert said | {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"} == set(CALLS)


def test_a_call_that_does_not_stand_in_the_table_is_refused_to_everyone(
    tmp_path, tokens, monkeypatch
):
    tokens.add("all", set(Right))
    rest = {method: need for method, need in CALLS.items() if not method.endswith("/List")}
    monkeypatch.setattr("anchor_server.gate.CALLS", rest)
    for access in (tokens.file, None):
        with (
            serve(tmp_path / "store", access=access) as collector,
            grpc.insecure_channel(collector.address) as channel,
        ):
            code = called(channel, "/anchorlib.wire.v1.Reader/List", tokens.of["all"])
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert asked(collector, tokens.of["all"], "run1.zarr/zarr.json") is None


def test_what_comes_before_a_handler_ends_the_call_of_any_form():
    def stop(context: object) -> None:
        raise PermissionError

    for form in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        handler = getattr(grpc, f"{form}_rpc_method_handler")(lambda request, context: request)
        guarded = behind(handler, stop)
        assert (guarded.request_streaming, guarded.response_streaming) == (
            handler.request_streaming,
            handler.response_streaming,
        )
        with pytest.raises(PermissionError):
            getattr(guarded, form)(b"", None)


# -- who reads


def test_a_reader_sees_its_runs_and_can_do_nothing_else(collector, tokens, caplog):
    alice, reader = tokens.of["alice"], tokens.of["reader"]
    assert recorded(collector, alice, "alice-1") is None
    assert recorded(collector, alice, "shared") is None
    before = sorted(collector.store.rglob("*"))
    with reading(collector, reader) as client:
        assert client.list() == ["alice-1.zarr/"]
        assert "rank0/" in client.list("alice-1.zarr")
        assert client.get("alice-1.zarr/zarr.json")
    for key in ("shared.zarr/zarr.json", "nothing.zarr/zarr.json", "shared.zarr", "alice-1/x"):
        assert asked(collector, reader, key) is FailureKind.FORBIDDEN, key
    with reading(collector, reader) as client, pytest.raises(CollectorError) as caught:
        client.list("shared.zarr/rank0")
    assert caught.value.kind is FailureKind.FORBIDDEN
    for hello in ({}, {"resume": True}, {"overwrite": True}, {"writer_id": OTHER}, {"rank": 3}):
        for run in ("alice-1", "alice-2", "shared"):
            assert recorded(collector, reader, run, **hello) is FailureKind.FORBIDDEN
    assert sorted(collector.store.rglob("*")) == before
    assert stored(collector.store, "alice-1") == expected([record(0)])


def test_a_keeper_measures_removes_and_renames_its_runs_and_no_others(collector, tokens):
    tokens.add("keeper", "read delete", "alice-*")
    collector.renew()
    for run in ("alice-1", "alice-2", "bob-1"):
        assert recorded(collector, tokens.of["bob" if run == "bob-1" else "alice"], run) is None

    def kind(token: str, call: str, *arguments: str) -> FailureKind | None:
        with keeping(collector, tokens.of[token]) as keeper:
            try:
                getattr(keeper, call)(*arguments)
            except CollectorError as error:
                return error.kind
            return None

    forbidden = [
        ("keeper", "measure", "bob-1"),
        ("keeper", "remove", "bob-1"),
        ("keeper", "remove", "bob-nothing"),
        ("keeper", "rename", "bob-1", "alice-3"),
        ("keeper", "rename", "alice-1", "bob-2"),
        ("chief", "remove", "alice-1"),
        ("reader", "rename", "alice-1", "alice-3"),
    ]
    assert {kind(*one) for one in forbidden} == {FailureKind.FORBIDDEN}
    assert stored_runs(collector) == {"alice-1", "alice-2", "bob-1"}
    assert kind("keeper", "measure", "alice-1") is None
    assert kind("keeper", "rename", "alice-1", "alice-3") is None
    assert kind("keeper", "remove", "alice-2") is None
    assert stored_runs(collector) == {"alice-3", "bob-1"}


def test_a_keeper_takes_a_name_for_nothing_but_the_name_of_a_run(collector, tokens, monkeypatch):
    tokens.add("keeper", "read delete", "alice-*")
    collector.renew()
    for run in ("alice-1", "shared"):
        assert recorded(collector, tokens.of["alice"], run) is None
    (collector.store / "alice-x.zarr").symlink_to("shared.zarr")
    monkeypatch.chdir(collector.store)  # where a path would lead somewhere
    before = sorted(collector.store.iterdir())
    with keeping(collector, tokens.of["keeper"]) as keeper:
        for name in ("alice-x.zarr", "alice-1.zarr", "alice-9"):
            for call in (
                keeper.measure,
                keeper.remove,
                lambda name: keeper.rename(name, "alice-2"),
            ):
                with pytest.raises(RunNotFoundError):
                    call(name)
        for name in ("../shared", "alice-1/../shared", "/etc", "", ".", "alice-\x1b[2J"):
            for call in (
                keeper.measure,
                keeper.remove,
                lambda name: keeper.rename("alice-1", name),
            ):
                with pytest.raises(CollectorError) as caught:
                    call(name)
                assert caught.value.kind is FailureKind.INVALID
    assert sorted(collector.store.iterdir()) == before


def test_who_asks_a_keeper_for_a_wrong_name_is_told_of_no_other(collector, tokens):
    tokens.add("keeper", "read delete", "alice-*")
    collector.renew()
    assert recorded(collector, tokens.of["alice"], "shared") is None
    message = sealed(MeasureRequest(run="alice-shared"))
    metadata = (("authorization", f"Bearer {tokens.of['keeper']}"),)
    with grpc.insecure_channel(collector.address) as channel:
        call = keep_call(channel, "Measure")
        with pytest.raises(grpc.RpcError) as told:
            call(message, metadata=metadata, timeout=20)
    assert told.value.details() == "there is no run 'alice-shared'"


def test_a_link_gives_nobody_a_run_that_he_has_no_right_to(collector, tokens):
    tokens.add("keeper", "read write replace delete", "alice-*")
    collector.renew()
    assert recorded(collector, tokens.of["bob"], "bobs") is None
    (collector.store / "alice-x.zarr").symlink_to("bobs.zarr")
    for name in ("alice", "keeper"):
        for hello in ({"resume": True}, {"overwrite": True}, {"rank": 1}):
            assert recorded(collector, tokens.of[name], "alice-x", **hello) is FailureKind.FORBIDDEN
    assert recorded(collector, tokens.of["bob"], "alice-x", rank=1) is None
    with keeping(collector, tokens.of["keeper"]) as keeper:
        with pytest.raises(CollectorError) as caught:
            keeper.measure("alice-x")
        assert caught.value.kind is FailureKind.FORBIDDEN
        keeper.rename("alice-x", "alice-y")
        keeper.remove("alice-y")  # the link, and what it leads to stays
    assert stored_runs(collector) == {"bobs"}
    assert stored(collector.store, "bobs") == expected([record(0)])


def stored_runs(collector: Collector) -> set[str]:
    return {path.stem for path in collector.store.glob("*.zarr")}


def test_links_lead_nobody_into_runs_that_he_may_not_read(collector, tokens):
    assert recorded(collector, tokens.of["alice"], "shared") is None
    (collector.store / "alice-x.zarr").symlink_to("shared.zarr")
    assert asked(collector, tokens.of["reader"], "alice-x.zarr/zarr.json") is FailureKind.FORBIDDEN
    assert asked(collector, tokens.of["alice"], "alice-x.zarr/zarr.json") is None
    with reading(collector, tokens.of["reader"]) as client:
        assert client.list() == []
    with reading(collector, tokens.of["alice"]) as client:
        assert client.list() == ["alice-x.zarr/", "shared.zarr/"]


def test_what_is_no_run_is_for_those_who_may_read_everything(collector, tokens):
    (collector.store / "notes").mkdir()
    (collector.store / "notes" / "a").write_text("x")
    assert asked(collector, tokens.of["alice"], "notes/a") is FailureKind.FORBIDDEN
    with reading(collector, tokens.of["bob"]) as client:
        assert client.get("notes/a") == b"x"
        assert client.list() == ["notes/"]


def test_commands_end_with_4_and_the_log_says_once_when_who_from_where(
    collector, tokens, caplog, monkeypatch
):
    assert recorded(collector, tokens.of["alice"], "shared") is None
    monkeypatch.setenv("ANCHOR_TOKEN", tokens.of["reader"])
    done = anchor("names", f"grpc://{collector.address}/shared")
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert "token 'reader' has no right to read run 'shared'" in done.err
    (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "has no right to read run 'shared'" in line.getMessage()
    assert (line.identity, line.kind) == ("reader", "forbidden")
    assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", line.peer)
    assert tokens.of["reader"] not in caplog.text
    runs = anchor("runs", "--store", f"grpc://{collector.address}", "--json")
    assert (runs.code, "shared" in runs.out) == (0, False)
    assert collector.tally.refused["forbidden"] == 1


# -- who writes


def test_a_writer_goes_on_with_its_own_runs_and_with_no_others(collector, tokens):
    alice, bob, chief = (tokens.of[name] for name in ("alice", "bob", "chief"))
    assert recorded(collector, alice, "shared") is None
    assert run_author(run_directory(collector.store, "shared")) == "alice"
    ways = ({"resume": True}, {"overwrite": True}, {"rank": 1}, {"rank": 1, "writer_id": OTHER})
    for hello in ways:
        assert recorded(collector, bob, "shared", **hello) is FailureKind.FORBIDDEN
    # Not even with the secret of the writer who made it.
    assert recorded(collector, bob, "shared") is FailureKind.FORBIDDEN
    assert not (run_directory(collector.store, "shared") / "rank1").exists()
    for hello in ways[:3]:
        assert recorded(collector, alice, "shared", **({"writer_id": OTHER} | hello)) is None
    for hello in ways[:2]:
        assert recorded(collector, chief, "shared", writer_id=b"c" * 16, **hello) is None
    # Whoever wrote into it last: it is still hers who made it.
    assert recorded(collector, bob, "shared", overwrite=True) is FailureKind.FORBIDDEN
    assert recorded(collector, alice, "shared", writer_id=b"n" * 16, overwrite=True) is None


def test_of_two_that_make_a_run_at_the_same_moment_it_is_of_the_first(
    collector, tokens, monkeypatch
):
    real = collector._ranks._take

    def late(key, claim):
        real(key, claim)  # all that is asked before the run is opened was asked
        if key[:2] == ("shared", 1):
            assert recorded(collector, tokens.of["alice"], "shared") is None

    monkeypatch.setattr(collector._ranks, "_take", late)
    assert recorded(collector, tokens.of["bob"], "shared", rank=1) is FailureKind.FORBIDDEN
    assert sorted(path.name for path in run_directory(collector.store, "shared").glob("rank*")) == [
        "rank0"
    ]


@pytest.mark.parametrize("token", [None, "the one token"])
def test_runs_without_a_name_go_on_and_only_those_who_may_replace_record_them_anew(
    tmp_path, tokens, token
):
    with serve(tmp_path / "store", token=token) as before:
        assert recorded(before, token, "shared") is None
    with serve(tmp_path / "store", access=tokens.file) as collector:
        alice = tokens.of["alice"]
        assert recorded(collector, alice, "shared", writer_id=OTHER, resume=True) is None
        assert recorded(collector, alice, "shared", overwrite=True) is FailureKind.FORBIDDEN
        anew = {"writer_id": b"n" * 16, "overwrite": True}
        assert recorded(collector, tokens.of["chief"], "shared", **anew) is None
        assert asked(collector, alice, "shared.zarr/zarr.json") is None


def test_a_renamed_run_is_still_of_the_token_that_made_it(collector, tokens):
    tokens.add("keeper", "read write delete", "*")
    collector.renew()
    assert recorded(collector, tokens.of["alice"], "alice-1") is None
    with keeping(collector, tokens.of["keeper"]) as keeper:
        keeper.rename("alice-1", "shared")
    assert run_author(run_directory(collector.store, "shared")) == "alice"
    for name in ("bob", "keeper"):
        assert recorded(collector, tokens.of[name], "shared", resume=True) is FailureKind.FORBIDDEN
    assert recorded(collector, tokens.of["alice"], "shared", rank=1) is None


def test_a_repaired_run_is_still_of_the_token_that_made_it(collector, tokens):
    assert recorded(collector, tokens.of["alice"], "shared") is None
    path = run_directory(collector.store, "shared") / "zarr.json"
    path.write_text(path.read_text().replace('"node_type":"group"', '"node_type":"array"'))
    assert anchor("repair", "shared", "--store", collector.store).code == 0
    assert '"node_type":"group"' in path.read_text()
    assert run_author(path.parent) == "alice"


@pytest.mark.parametrize("document", ["{", None])
def test_a_run_whose_maker_cannot_be_read_is_nobodys(collector, tokens, document):
    assert recorded(collector, tokens.of["alice"], "shared") is None
    path = run_directory(collector.store, "shared") / "zarr.json"
    if document is None:
        path.unlink()
    else:
        path.write_text(document)
    rename_run(collector.store, "shared", "alice-9")  # which invents no maker either
    rename_run(collector.store, "alice-9", "shared")
    assert recorded(collector, tokens.of["alice"], "shared", resume=True) is FailureKind.STORE
    assert recorded(collector, tokens.of["chief"], "shared", writer_id=OTHER, resume=True) is None


# -- changes


def test_a_token_that_is_revoked_ends_its_streams_and_no_others(collector, tokens):
    with (
        Pusher(collector.address, token=tokens.of["bob"], run="bobs") as hers,
        Pusher(collector.address, token=tokens.of["alice"], run="alice-1") as stays,
        reading(collector, tokens.of["bob"]) as reader,
    ):
        for stream in (hers, stays):
            stream.push(record(0))
            stream.acked(1)
        tokens.revoke("bob")  # nobody says so: the file is looked at
        assert hers.kind() is FailureKind.TOKEN
        with pytest.raises(CollectorError, match="the token is missing or wrong"):
            reader.list()
        stays.push(record(1))
        stays.acked(2)
    assert stored(collector.store, "bobs") == expected([record(0)])


@pytest.mark.parametrize("now", ['rights = ["read"]', 'runs = ["alice-2"]'])
def test_a_right_that_is_taken_away_ends_the_streams_that_needed_it(collector, tokens, now):
    with Pusher(collector.address, token=tokens.of["alice"], run="alice-1") as stream:
        stream.push(record(0))
        stream.acked(1)
        key = now.partition(" ")[0]
        text = re.sub(f"(?m)^{key} = .*$", now, tokens.file.read_text(), count=1)
        tokens.file.write_text(text)
        collector.renew()
        assert stream.kind() is FailureKind.FORBIDDEN
    assert recorded(collector, tokens.of["alice"], "alice-1") is FailureKind.FORBIDDEN


def test_a_right_to_replace_that_is_taken_away_ends_what_went_on_with_it(collector, tokens):
    assert recorded(collector, tokens.of["alice"], "shared") is None
    hello = {"run": "shared", "writer_id": OTHER, "resume": True}
    with Pusher(collector.address, token=tokens.of["chief"], **hello) as stream:
        assert stream.reply().HasField("resume")
        tokens.file.write_text(tokens.file.read_text().replace(', "replace"', ""))
        collector.renew()
        assert stream.kind() is FailureKind.FORBIDDEN


def test_a_new_token_is_known_without_a_word(collector, tokens):
    late = tokens.add("late", "read")
    until(lambda: asked(collector, late, "x.zarr/zarr.json") is None)


@pytest.mark.parametrize(
    "broken",
    [
        *("", "[[token]]\nname = 3\n", "junk", "\xff", "group can read", "gone"),
        pytest.param(f"a = {'1' * 5000}", id="a number without end"),
    ],
)
def test_a_broken_file_leaves_the_old_one_in_force_and_says_so_once(
    collector, tokens, caplog, broken
):
    with Pusher(collector.address, token=tokens.of["alice"], run="alice-1") as stream:
        stream.push(record(0))
        if broken == "group can read":
            tokens.file.chmod(0o644)
        elif broken == "gone":
            tokens.file.unlink()
        else:
            tokens.file.write_bytes(broken.encode("latin-1"))
        until(lambda: "access stays as it was" in caplog.text)
        stream.acked(1)
    assert asked(collector, tokens.of["alice"], "alice-1.zarr/zarr.json") is None
    with pytest.raises(OptionError):
        collector.renew()
    assert recorded(collector, tokens.of["alice"], "alice-2") is None
    assert len([one for one in caplog.records if "stays as it was" in one.getMessage()]) == 1


def test_a_file_that_is_being_written_is_not_taken_for_what_is_meant(tokens):
    file = AccessFile(tokens.file, lambda access: None, certificates=False)
    file.read()
    for part in ("# a", "# and more"):
        tokens.file.write_text(part)
        assert not file._has_changed()
    assert file._has_changed()


def test_a_trainer_whose_token_is_revoked_keeps_what_it_has_until_it_may_again(
    tmp_path, collector, tokens, monkeypatch
):
    monkeypatch.setenv("ANCHOR_TOKEN", tokens.of["bob"])
    kept = tokens.file.read_text()
    sink = sink_to(collector.address, tmp_path / "spools")
    sink.put(block_of([record(0)]))
    sink.flush().wait(20)
    tokens.revoke("bob")
    collector.renew()
    sink.put(block_of([record(1)]))
    with pytest.raises(CollectorError) as caught:
        sink.flush().wait(20)
    assert caught.value.kind is FailureKind.TOKEN
    sink.close(10)
    tokens.file.write_text(kept)
    collector.renew()
    (spool,) = spools(tmp_path / "spools")
    assert anchor("push", spool, "--to", f"grpc://{collector.address}").code == 0
    assert stored(collector.store) == expected([record(0), record(1)])


# -- certificates


def test_a_certificate_stands_for_a_token(tmp_path):
    root = pair(tmp_path, "root")
    here = pair(tmp_path, "server", root)
    ways = {"cn": "trainer7", "san": "spiffe-like.example", "none": "stranger"}
    shown = {
        "cn": pair(tmp_path, "trainer7", root),
        "san": pair(tmp_path, "x", root, hosts=("spiffe-like.example",)),
        "none": pair(tmp_path, "stranger", root, hosts=("elsewhere.example",)),
    }
    file = tmp_path / "access.toml"
    token = issue_token(file, "person", ["read"], ["*"])
    with file.open("a") as text:
        text.write(
            '[[token]]\nname = "seven"\nrights = ["read"]\nruns = ["a"]\n'
            f'common_names = ["{ways["cn"]}"]\n'
            '[[token]]\nname = "job"\nrights = ["read"]\nruns = ["b"]\n'
            f'alternative_names = ["{ways["san"]}"]\n'
        )
    tls = ServerTLS(here.cert, here.key, root.cert)
    (tmp_path / "store" / "a.zarr").mkdir(parents=True)
    (tmp_path / "store" / "b.zarr").mkdir()
    with serve(tmp_path / "store", tls=tls, access=file) as collector:

        def listed(way: str, token: str | None = None) -> list[str] | FailureKind:
            made = shown[way]
            credentials = Credentials(token, root.cert, made.cert, made.key)
            url = f"grpcs://{collector.address}"
            with ReaderClient(url, credentials, timeout=10) as reader:
                try:
                    return reader.list()
                except CollectorError as error:
                    return error.kind

        assert listed("cn") == ["a.zarr/"]
        assert listed("san") == ["b.zarr/"]
        assert listed("none") is FailureKind.TOKEN
        assert listed("none", token) == ["a.zarr/", "b.zarr/"]
        assert listed("cn", "wrong") is FailureKind.TOKEN  # who shows a token is taken at his word


@pytest.mark.parametrize("key", ["common_names", "alternative_names"])
def test_names_of_certificates_that_nobody_is_asked_for_are_refused(tmp_path, tokens, caplog, key):
    store, before = tmp_path / "store", tokens.file.read_text()
    told = ("--store", store, "--bind", "127.0.0.1:0", "--access", tokens.file)
    named = before.replace("[[token]]", f'[[token]]\n{key} = ["trainer7"]', 1)
    tokens.file.write_text(named)
    done = anchor("serve", *told)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--client-ca" in done.err
    tokens.file.write_text(before)
    with serve(store, access=tokens.file) as collector:
        tokens.file.write_text(named)
        with pytest.raises(OptionError, match="--client-ca"):
            collector.renew()


# -- the file, and how tokens come into it


def test_a_token_is_the_last_word_on_stdout_and_stands_nowhere_else(tmp_path):
    file = tmp_path / "access.toml"
    file.touch(mode=0o600)
    file.write_text("# ours\n[[token]] # hers\nname = 'alice'\nrights = 'read'\nruns = '*'\n"
                    f"hash = 'sha256:{'0' * 64}'")  # fmt: skip
    options = ("--rights", "read,write", "--runs", "vision-*, shared", "--access", file)
    done = anchor("token", "vision", *options)
    assert (done.code, done.out.count("\n"), done.err) == (0, 1, "")
    token = done.out.split()[-1]
    assert len(token) >= 43
    text = file.read_text()
    assert text.startswith("# ours\n[[token]] # hers\nname = 'alice'\n")
    assert token not in text
    assert hashlib.sha256(token.encode()).hexdigest() in text
    assert (list(tmp_path.iterdir()), stat.S_IMODE(file.stat().st_mode)) == ([file], 0o600)
    (found,) = [one for one in parse_access(text, "f").grants if one.name == "vision"]
    assert (found.rights, found.runs) == ({"read", "write"}, ("vision-*", "shared"))
    again = anchor("token", "vision", *options)
    assert (again.code, again.out, again.err.count("\n")) == (2, "", 1)
    assert "has a token 'vision' already" in again.err
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("name", "rights", "runs", "words"),
    [
        ("a", "fly", "*", "'fly' is no right"),
        ("a", "", "*", "needs rights out of"),
        ("a", "read", "", "needs runs"),
        ("a", "read", "a/b", "needs runs"),
        ("a\nb", "read", "*", "needs a name"),
        ('a"', "read", "*", "needs a name"),
        ("", "read", "*", "needs a name"),
    ],
)
def test_what_cannot_be_granted_is_refused_in_one_line(tmp_path, name, rights, runs, words):
    file = tmp_path / "access.toml"
    done = anchor("token", "--rights", rights, "--runs", runs, "--access", file, "--", name)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert words in done.err
    assert not file.exists()


def test_a_file_that_others_can_read_or_that_is_none_is_not_added_to(tmp_path):
    file = tmp_path / "access.toml"
    for content, mode, words in (
        (b"", 0o644, "chmod 600"),
        (b"[server]\n", 0o600, "[[token]] tables alone"),
        (b"a = \n", 0o600, "is no TOML"),
        (b"\xff", 0o600, "is no UTF-8"),
    ):
        file.write_bytes(content)
        file.chmod(mode)
        with pytest.raises(OptionError, match=re.escape(words)):
            issue_token(file, "a", ["read"], ["*"])
        assert file.read_bytes() == content


GOOD = f'name = "a"\nhash = "sha256:{"0" * 64}"\nrights = ["read"]\nruns = ["*"]\n'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"a"', '"a b"', "needs a name"),
        ('name = "a"', "", "needs a name"),
        ("sha256:", "md5:", "sha256: and 64"),
        ('"read"', '"read", "own"', "needs rights out of"),
        ('["read"]', "[3]", "rights is a list of texts"),
        ('["*"]', "[]", "needs runs"),
        ("hash", "hush", "has 'hush', which is none of"),
        ("rights", "[token.x]\nrights", "has 'x', which is none of"),
    ],
)
def test_a_table_that_cannot_be_is_named(old, new, words):
    parse_access(f"[[token]]\n{GOOD}", "f")
    with pytest.raises(OptionError, match=re.escape(words)) as caught:
        parse_access(f"[[token]]\n{GOOD.replace(old, new)}", "f")
    assert "\n" not in str(caught.value)


def test_two_tables_never_stand_for_the_same():
    for changed in (GOOD.replace('"a"', '"b"'), GOOD.replace("0" * 64, "1" * 64)):
        with pytest.raises(OptionError, match="of one before it"):
            parse_access(f"[[token]]\n{GOOD}[[token]]\n{changed}", "f")


@given(st.text("ab-*?[]!.", max_size=6), st.text("ab-.", min_size=1, max_size=6))
def test_a_glob_never_reaches_beyond_what_it_says(glob, run):
    grant = Grant("x", ALL_RIGHTS, (glob,))
    if not set(glob) & set("*?["):
        assert grant.may(Right.READ, run) is (glob == run)
    assert grant.may(Right.READ, None) is (glob == "*")


def test_one_token_and_an_access_file_are_not_both_given(tmp_path, tokens):
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    done = anchor("serve", "--access", tokens.file, "--token-file", secret, "--store", tmp_path)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "leave out --token-file" in done.err
    with pytest.raises(OptionError):
        Collector(tmp_path, "127.0.0.1:0", token="x", access=tokens.file)
    gone = anchor("serve", "--access", tmp_path / "no.toml", "--store", tmp_path)
    said = f"anchor: cannot read {tmp_path}/no.toml: No such file or directory\n"
    assert (gone.code, gone.err) == (2, said)
