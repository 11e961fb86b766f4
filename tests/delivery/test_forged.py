"""Nothing goes from a spool that is not confirmed to be in the store, whoever wrote there."""

from __future__ import annotations

import json

import pytest

from anchor_cli.main import main
from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.claims import claim_of, next_secret
from anchorlib.store import Writer
from anchorlib.wire import Confirm, PushRequest, sealed
from tests.delivery.lines import (
    check_store,
    eventually,
    free_port,
    numbered,
    sink_to,
    spools,
)
from tests.server.pushing import Pusher, fingerprint, stored
from tests.writing import put

FORGED = 86


@pytest.fixture
def left(tmp_path):
    """A spool of 60 records that a trainer left."""
    sink = sink_to(f"127.0.0.1:{free_port()}", tmp_path / "spools")
    for start in range(0, 60, 10):
        sink.put(block_of([numbered(n) for n in range(start, start + 10)]))
    sink.close(0)
    (folder,) = spools(tmp_path / "spools")
    return folder


def secret_of(folder) -> bytes:
    return bytes.fromhex(json.loads((folder / "spool.json").read_text())["writer_id"])


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.seg")}


def push_to(store, left, *options, remote: bool) -> int:
    if not remote:
        return main(["push", str(left), "--to", str(store), *options])
    with serve(store) as collector:
        return main(["push", str(left), "--to", f"grpc://{collector.address}", *options])


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("forged", [20, FORGED])
def test_records_that_another_put_in_their_place_are_refused_and_the_spool_stays(
    tmp_path, left, capsys, remote, forged
):
    store, before = tmp_path / "store", content(left)
    with Writer.open(store, "run1", 0, writer_id=secret_of(left)) as writer:
        put(writer, [numbered(n) for n in range(1000, 1000 + forged)])
    assert push_to(store, left, remote=remote) == (4 if remote else 2)
    assert "are not those that are held here; nothing was removed" in capsys.readouterr().err
    assert content(left) == before
    assert [step for _, step, _ in stored(store)] == [*range(1000, 1000 + forged)]
    assert push_to(store, left, "--as", "genuine", remote=remote) == 0
    assert capsys.readouterr().out.startswith("genuine: 60 records delivered")
    assert check_store(store, 60, run="genuine") == 60
    assert not left.exists()


@pytest.mark.parametrize("remote", [False, True])
def test_one_record_that_differs_is_enough_to_refuse(tmp_path, left, remote):
    store, before = tmp_path / "store", content(left)
    with Writer.open(store, "run1", 0, writer_id=secret_of(left)) as writer:
        put(writer, [numbered(n if n != 17 else 1017) for n in range(60)])
    assert push_to(store, left, remote=remote) == (4 if remote else 2)
    assert content(left) == before


@pytest.mark.parametrize("remote", [False, True])
def test_records_beyond_those_of_a_spool_are_not_counted_as_its_own(tmp_path, left, capsys, remote):
    """A machine that lost power has sent what its disk does not have."""
    with Writer.open(tmp_path / "store", "run1", 0, writer_id=secret_of(left)) as writer:
        put(writer, [numbered(n) for n in range(FORGED)])
    assert push_to(tmp_path / "store", left, remote=remote) == 0
    assert ": 0 records delivered to " in (told := capsys.readouterr().out)
    assert told.endswith(", 60 were there\n")
    assert check_store(tmp_path / "store", FORGED) == FORGED


@pytest.mark.parametrize("remote", [False, True])
def test_what_an_earlier_delivery_brought_is_confirmed_as_well(tmp_path, left, remote):
    store, before = tmp_path / "store", content(left)
    with Writer.open(store, "run1", 0, writer_id=secret_of(left)) as writer:
        put(writer, [numbered(n if n != 3 else 1003) for n in range(20)])
    with Writer.open(store, "run1", 0, resume=True) as writer:
        put(writer, [numbered(500)])
    with Writer.open(
        store, "run1", 0, resume=True, writer_id=next_secret(secret_of(left))
    ) as writer:
        put(writer, [numbered(n) for n in range(20, 40)])
    assert push_to(store, left, remote=remote) == (4 if remote else 2)
    assert content(left) == before


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("honest", [True, False])
def test_damage_of_what_was_delivered_hides_nothing_and_costs_nothing(
    tmp_path, left, capsys, remote, honest
):
    (segment,) = left.glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 3] ^= 1
    segment.write_bytes(data)
    with Writer.open(tmp_path / "store", "run1", 0, writer_id=secret_of(left)) as writer:
        put(writer, [numbered(n if honest or n else 1000) for n in range(40)])
    code = push_to(tmp_path / "store", left, "--json", remote=remote)
    if not honest:
        assert code == (4 if remote else 2)
        assert segment.read_bytes() == data
        return
    assert code == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["records"], told["already"], told["lost"], told["set_aside"]) == (60, 40, 0, 1)
    assert check_store(tmp_path / "store", 60) == 60
    assert [path.suffix for path in left.glob("0*")] == [".bad"]


def test_a_stream_is_told_what_its_rank_has_and_refused_what_cannot_be(tmp_path):
    records = [numbered(n) for n in range(10)]
    with serve(tmp_path) as collector, Pusher(collector.address) as stream:
        stream.push(*records)
        stream.acked(10)
        stream.send(sealed(PushRequest(confirm=Confirm(first=2, end=7))))
        assert stream.reply().confirmed.fingerprint == fingerprint(records[2:7])
        for asked in ((0, 11, 0), (7, 2, 0), (0, 1, 1), (0, 1 << 63, 0), (1 << 63, 1 << 63, 9)):
            with Pusher(collector.address) as other:
                first, end, attempt = asked
                question = Confirm(first=first, end=end, attempt=attempt)
                other.send(sealed(PushRequest(confirm=question)))
                assert other.refusal()[0].name == "INVALID_ARGUMENT"


def test_a_live_session_that_meets_others_in_its_place_keeps_what_it_has(tmp_path, caplog):
    address = f"127.0.0.1:{free_port()}"
    sink = sink_to(address, tmp_path / "spools")
    sink.put(block_of([numbered(n) for n in range(60)]))
    with Writer.open(tmp_path / "store", "run1", 0, writer_id=secret_of(sink.spool)) as writer:
        put(writer, [numbered(n) for n in range(1000, 1000 + FORGED)])
    before = content(sink.spool)
    with serve(tmp_path / "store", address), eventually() as now:
        while not sink._sender.refusal:
            assert now()
    sink.close(0)
    assert content(sink.spool).keys() >= before.keys()
    assert "--as NAME" in caplog.text
    assert main(["push", str(sink.spool), "--to", str(tmp_path / "store"), "--as", "mine"]) == 0
    assert check_store(tmp_path / "store", 60, run="mine") == 60


def test_the_next_attempt_keeps_an_earlier_spool_that_others_stand_in_for(tmp_path, left, caplog):
    with Writer.open(tmp_path / "store", "run1", 0, writer_id=secret_of(left)) as writer:
        put(writer, [numbered(n) for n in range(1000, 1000 + FORGED)])
    label = json.loads((left / "spool.json").read_text())
    before = content(left)
    with serve(tmp_path / "store", label["to"].removeprefix("grpc://")):
        sink = sink_to(label["to"].removeprefix("grpc://"), tmp_path / "spools", resume=True)
        sink.put(block_of([numbered(60)]))
        sink.flush().wait(20)
        sink.close(10)
    assert content(left) == before
    assert "was not delivered" in caplog.text
    assert [step for _, step, _ in stored(tmp_path / "store")][FORGED:] == [60]


# -- who may go on


def test_no_reader_sees_what_lets_a_writer_go_on(tmp_path, caplog):
    caplog.set_level("INFO")
    store = tmp_path / "store"
    with serve(store) as collector:
        sink = sink_to(collector.address, tmp_path / "spools")
        secret = secret_of(sink.spool)
        sink.put(block_of([numbered(n) for n in range(10)]))
        sink.flush().wait(20)
        shown = [path.read_bytes() for path in store.rglob("*") if path.is_file()]
        sink.close(10)
    shown += [path.read_bytes() for path in store.rglob("*") if path.is_file()]
    shown += [str(sink.spool).encode(), caplog.text.encode()]
    assert any(claim_of(secret).hex().encode() in one for one in shown)
    assert not [one for one in shown if secret in one or secret.hex().encode() in one]


def test_what_readers_see_does_not_let_them_go_on(tmp_path):
    with serve(tmp_path) as collector:
        with Pusher(collector.address, writer_id=b"s" * 16) as stream:
            stream.push(numbered(0))
            stream.acked(1)
        for shown in (claim_of(b"s" * 16)[:16], claim_of(b"s" * 16)):
            with Pusher(collector.address, writer_id=shown) as other:
                assert other.refusal()[0].name in ("ALREADY_EXISTS", "INVALID_ARGUMENT")


def test_a_run_of_an_older_writer_is_gone_on_with_by_its_secret(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorlib.store.write.writer.claim_of", lambda secret: secret)
    with Writer.open(tmp_path, "run1", 0, writer_id=b"o" * 16) as writer:
        put(writer, [numbered(0)])
    monkeypatch.undo()
    with Writer.open(tmp_path, "run1", 0, writer_id=b"o" * 16) as writer:
        assert writer.committed == 1


# -- under another name


@pytest.mark.parametrize("remote", [False, True])
def test_a_spool_whose_runs_name_is_taken_is_delivered_under_another(
    tmp_path, left, capsys, remote
):
    store = tmp_path / "store"
    with Writer.open(store, "run1", 0) as writer:
        put(writer, [numbered(7)])
    assert push_to(store, left, remote=remote) == 2
    assert f"anchor push {left} --to " in (told := capsys.readouterr().err)
    assert "--as NAME" in told
    assert push_to(store, left, "--as", "run1", remote=remote) == 2
    assert push_to(store, left, "--as", "../run2", remote=remote) == 2
    assert push_to(store, left, "--as", "run2", "--json", remote=remote) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "run2"
    assert check_store(store, 60, run="run2") == 60
    assert [step for _, step, _ in stored(store)] == [7]


def test_attempts_that_were_left_go_under_another_name_together(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    for attempt in range(3):
        sink = sink_to(address, tmp_path / "spools", resume=attempt > 0)
        sink.put(block_of([numbered(n) for n in range(attempt * 10, attempt * 10 + 10)]))
        sink.close(0)
    store = tmp_path / "store"
    with Writer.open(store, "run1", 0) as writer:
        put(writer, [numbered(7)])
    assert main(["push", str(sink.spool), "--to", str(store), "--as", "run2"]) == 0
    assert check_store(store, 30, run="run2") == 30
    assert [step for _, step, _ in stored(store)] == [7]


def test_a_spool_that_resumed_joins_no_other_run_by_its_name(tmp_path, capsys):
    sink = sink_to(f"127.0.0.1:{free_port()}", tmp_path / "spools", resume=True, overwrite=True)
    sink.put(block_of([numbered(0)]))
    sink.close(0)
    with Writer.open(tmp_path / "store", "other", 0) as writer:
        put(writer, [numbered(7)])
    arguments = ["push", str(sink.spool), "--to", str(tmp_path / "store"), "--as", "other"]
    assert main(arguments) == 2
    assert "another recording" in capsys.readouterr().err
    assert [step for _, step, _ in stored(tmp_path / "store", "other")] == [7]


def test_a_delivery_under_another_name_that_was_cut_short_goes_on(tmp_path, left):
    with Writer.open(tmp_path / "store", "run2", 0, writer_id=secret_of(left)) as writer:
        put(writer, [numbered(n) for n in range(40)])
    assert push_to(tmp_path / "store", left, "--as", "run2", remote=True) == 0
    assert check_store(tmp_path / "store", 60, run="run2") == 60


# -- nothing waits


@pytest.mark.parametrize("remote", [False, True])
def test_a_drained_spool_is_nothing_waits(tmp_path, left, capsys, remote):
    for segment in left.glob("*.seg"):
        segment.unlink()  # as a trainer that is killed behind its last acknowledgement
    assert push_to(tmp_path / "store", left, remote=remote) == 0
    assert capsys.readouterr().out == f"nothing waits in {left}\n"
    assert not (tmp_path / "store" / "run1.zarr").exists()
    assert not left.exists()


def test_a_spool_that_was_delivered_before_is_nothing_waits(tmp_path, left, capsys):
    assert push_to(tmp_path / "store", left, remote=False) == 0
    capsys.readouterr()
    assert push_to(tmp_path / "store", left, "--json", remote=False) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["rank"], told["records"]) == ("run1", 0, 0)
    assert check_store(tmp_path / "store", 60) == 60


# -- copies


def test_a_copy_that_differs_in_one_record_is_never_taken_for_the_run(tmp_path, capsys):
    for store, odd in (("source", 17), ("copy", 1017)):
        with Writer.open(tmp_path / store, "run1", 0) as writer:
            put(writer, [numbered(n if n != 17 else odd) for n in range(60)])
    source, copy = str(tmp_path / "source"), str(tmp_path / "copy")
    assert main(["push", "run1", "--store", source, "--to", copy]) == 2
    assert "another recording" in capsys.readouterr().err
    assert main(["push", "run1", "--store", source, "--to", copy, "--as", "run2"]) == 0
    assert check_store(tmp_path / "copy", 17, run="run2") == 60


def test_only_who_began_a_copy_goes_on_with_it(tmp_path, monkeypatch, capsys):
    source, copy = tmp_path / "source", str(tmp_path / "copy")
    with Writer.open(source, "run1", 0) as writer:
        put(writer, [numbered(n) for n in range(30)])
    push = ["push", str(source / "run1.zarr"), "--to", copy]
    assert main(push) == 0
    mine = tmp_path / "mine"
    monkeypatch.setenv("ANCHOR_SPOOL", str(mine))
    assert main(push) == 0  # all of it is there
    with Writer.open(source, "run1", 0, resume=True) as writer:
        put(writer, [numbered(n) for n in range(30, 40)])
    assert main(push) == 0  # a further attempt is anyone's
    with Writer.open(tmp_path / "other", "run1", 0) as writer:
        put(writer, [numbered(n) for n in range(10)])
    capsys.readouterr()
    assert main([*push[:3], str(tmp_path / "other")]) == 2
    assert "another user or machine began" in capsys.readouterr().err
    assert check_store(tmp_path / "copy", 40) == 40
