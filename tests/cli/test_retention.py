"""`anchor rm`, `mv`, `gc`: on a directory, and through a collector."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from anchor_server import issue_token, serve
from anchorlib.errors import CollectorError, OptionError, RunNotFoundError
from anchorlib.spool.spool_folder import SpoolLabel
from anchorlib.store import LocalLocation, Writer, disk_bytes, list_runs, remove_run
from anchorlib.upkeep import RunFacts, chosen, keeper_at
from anchorlib.wire import KeeperClient
from tests.cli.made import anchor, make_run, record
from tests.waiting import until

DAY = 86_400 * 10**9


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANCHOR_SPOOL", str(tmp_path / "spools"))
    for number in range(3):
        make_run(tmp_path / "store", [record(step=number)], f"run{number}")
    return tmp_path / "store"


@pytest.fixture(params=["directory", "collector"])
def place(request: pytest.FixtureRequest, store: Path) -> Iterator[str]:
    """How the store is reached."""
    if request.param == "directory":
        yield str(store)
    else:
        with serve(store) as collector:
            yield f"grpc://{collector.address}"


def names(store: Path) -> list[str]:
    return list_runs(LocalLocation(store))


def age(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """From now on it is so many days later."""
    now = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: now() + days * DAY)


def test_rm_removes_runs_and_says_what_was_freed(store: Path, place: str) -> None:
    done = anchor("rm", "run0", "run2", "--store", place)
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first.startswith("run0: removed, ")
    assert first.endswith(" bytes freed")
    assert second.startswith("run2: removed, ")
    assert names(store) == ["run1"]


def test_rm_of_a_link_says_that_it_was_one_and_that_the_run_stays(store: Path, place: str) -> None:
    (store / "latest.zarr").symlink_to("run2.zarr", target_is_directory=True)
    done = anchor("rm", "latest", "--store", place)
    told = "latest: removed, which was a link; the run that it led to stays\n"
    assert (done.code, done.out, done.err) == (0, told, "")
    assert names(store) == ["run0", "run1", "run2"]


def test_rm_removes_nothing_where_one_name_is_wrong(store: Path, place: str) -> None:
    done = anchor("rm", "run0", "run9", "--store", place)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "no run 'run9'" in done.err
    assert names(store) == ["run0", "run1", "run2"]


def test_rm_removes_a_run_that_is_named_twice_once(store: Path, place: str) -> None:
    done = anchor("rm", "run0", "run0", "--store", place)
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    assert names(store) == ["run1", "run2"]


def test_a_run_that_leaves_for_its_archive_while_it_is_removed_is_forgotten(
    store: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*given: Any, **options: Any) -> int:
        leave(store, tmp_path / "archive", "run1")
        return remove_run(*given, **options)

    keeper = "anchor_server.keeper_service" if "://" in place else "anchorlib.upkeep.store_keepers"
    monkeypatch.setattr(f"{keeper}.remove_run", meanwhile)
    done = anchor("rm", "run1", "--store", place)
    assert (done.code, done.err) == (0, "")
    assert names(store) == ["run0", "run2"]
    assert anchor("names", "run1", "--store", tmp_path / "archive").code == 0


def test_rm_removes_a_run_that_is_named_twice_in_two_ways_once(store: Path, place: str) -> None:
    other = f"{place}/run0" if "://" in place else f"{store.parent}/./store/run0.zarr"
    done = anchor("rm", "run0", other, "run1", "--store", place)
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 2)
    assert names(store) == ["run2"]


def test_rm_of_a_link_and_of_the_run_that_it_leads_to_removes_both(store: Path) -> None:
    (store / "latest.zarr").symlink_to("run2.zarr", target_is_directory=True)
    done = anchor("rm", "latest", f"{store}/run2.zarr", "--store", store)
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 2)
    assert names(store) == ["run0", "run1"]


def test_a_run_that_is_gone_before_its_turn_comes_is_told_of_in_a_line(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_the_next(*given: Any, **options: Any) -> int:
        remove_run(store, "run1")  # as another process may, between the look-up and the removal
        return remove_run(*given, **options)

    monkeypatch.setattr("anchorlib.upkeep.store_keepers.remove_run", with_the_next)
    done = anchor("rm", "run0", "run1", "--store", store)
    assert (done.code, done.out.count("\n")) == (2, 1)
    assert done.err == f"anchor: no run 'run1' in {store}\n"


def test_a_run_that_goes_while_it_is_measured_is_no_run_or_in_its_archive_alone(
    store: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keeper_at(place)
    with pytest.raises(RunNotFoundError):
        keeper.measure("run9")
    of_collector = "://" in place
    where = "anchor_server.keeper_service" if of_collector else "anchorlib.upkeep.store_keepers"

    def gone(folder: Path) -> int:
        shutil.rmtree(folder)
        return disk_bytes(folder)

    monkeypatch.setattr(f"{where}.disk_bytes", gone)
    with pytest.raises(RunNotFoundError):
        keeper.measure("run0")
    assert anchor("archive", "run1", "--to", tmp_path / "archive", "--store", store).code == 0
    with pytest.raises(OptionError if of_collector else RunNotFoundError):
        keeper.measure("run1")


@pytest.mark.slow
def test_what_has_gone_before_a_refusal_is_told(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "access.toml"
    token = issue_token(file, "keeper", ["read", "delete"], ["*"])
    monkeypatch.setenv("ANCHOR_TOKEN", token)
    with serve(store, access=file) as collector:
        place = f"grpc://{collector.address}"
        with Writer.open(store, "run1", 0, resume=True):
            done = anchor("rm", "run0", "run1", "--json", "--store", place)
        assert (done.code, [one["run"] for one in done.json]) == (4, ["run0"])
        remove = KeeperClient.remove

        def once(self: KeeperClient, run: str, **options: int) -> int:
            found = remove(self, run, **options)
            file.write_text(file.read_text().replace(', "delete"', ""))
            collector.renew()
            return found

        monkeypatch.setattr(KeeperClient, "remove", once)
        done = anchor("gc", "--max-size", "1B", "--json", "--store", place)
        assert (done.code, [one["run"] for one in done.json["removed"]]) == (4, ["run2"])
    assert names(store) == ["run1"]


def test_gc_tells_of_each_run_that_a_collector_refuses_to_remove(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "access.toml"
    monkeypatch.setenv("ANCHOR_TOKEN", issue_token(file, "reader", ["read"], ["*"]))
    with serve(store, access=file) as collector:
        done = anchor("gc", "--keep-last", "0", "--json", "--store", f"grpc://{collector.address}")
    assert (done.code, done.json["removed"]) == (4, [])
    told = done.err.splitlines()
    assert [line.split()[1] for line in told] == ["run0", "run1", "run2"]
    assert all("stays: " in line and "no right to delete" in line for line in told)


def leave(store: Path, archive: Path, run: str = "run0") -> None:
    """Archives a run and removes its files from the store."""
    done = anchor("archive", run, "--to", archive, "--keep-local", "none", "--store", store)
    assert done.code == 0, done.err


@pytest.mark.parametrize("collectors", [0, 1, 2])
def test_gc_removes_the_others_where_a_run_leaves_for_its_archive_meanwhile(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collectors: int
) -> None:
    def meanwhile(*given: Any) -> list[RunFacts]:
        leave(store, tmp_path / "archive", "run1")
        return chosen(*given)

    monkeypatch.setattr("anchorlib.upkeep.chosen", meanwhile)
    with ExitStack() as served:
        found = [served.enter_context(serve(one)) for one in (store, tmp_path / "b")[:collectors]]
        there = ",".join(one.address for one in found)
        place = f"grpc://{there}" if there else str(store)
        done = anchor("gc", "--keep-last", "0", "--json", "--store", place)
    assert (done.code, done.err) == (0, "")
    assert [one["run"] for one in done.json["removed"]] == ["run0", "run2"]
    assert names(store) == ["run1"]  # its note


@pytest.mark.slow
def test_a_run_that_is_written_is_refused_in_a_line(store: Path, place: str) -> None:
    with Writer.open(store, "run1", 1):
        removed = anchor("rm", "run1", "--store", place)
        renamed = anchor("mv", "run1", "new", "--store", place)
        collected = anchor("gc", "--keep-last", "0", "--store", place, "--json")
    refused = 4 if "://" in place else 2
    assert (removed.code, renamed.code) == (refused, refused)
    assert "is being written" in removed.err
    assert removed.err.count("\n") == 1
    assert collected.code == 0
    assert [one["run"] for one in collected.json["removed"]] == ["run0", "run2"]
    assert collected.json["kept"] == ["run1"]
    assert names(store) == ["run1"]


def test_mv_renames_and_refuses_a_name_that_is_taken(store: Path, place: str) -> None:
    done = anchor("mv", "run0", "baseline", "--store", place)
    assert (done.code, done.out) == (0, "run0 is now baseline\n")
    taken = anchor("mv", "run1", "run2", "--store", place)
    assert taken.code == (4 if "://" in place else 2)
    assert "there is a run 'run2'" in taken.err
    assert anchor("mv", "run1", "../run7", "--store", place).code == 2
    assert names(store) == ["baseline", "run1", "run2"]


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """The stores of three collectors that hold a rank of run0 each."""
    found = [tmp_path / f"at{rank}" for rank in range(3)]
    for rank, place in enumerate(found):
        make_run(place, [record(rank=rank)], "run0", rank=rank)
    return found


@pytest.mark.slow
def test_a_run_is_only_in_its_archive_where_no_collector_has_files_of_it(
    stores: list[Path], tmp_path: Path
) -> None:
    make_run(stores[1], [record()], "run1")
    archive = tmp_path / "archive"
    leave(stores[1], archive, "run1")
    with ExitStack() as served:
        there = ",".join(served.enter_context(serve(place)).address for place in stores)
        for last, store in enumerate(stores):
            leave(store, archive)
            listed = anchor("runs", "--store", f"grpc://{there}", "--json")
            assert listed.code == 0, listed.err
            alone = [str(archive) if last == 2 else None, str(archive)]
            assert [one.get("archive") for one in listed.json] == alone


@pytest.mark.slow
@pytest.mark.parametrize("archived", [False, True])
def test_what_a_collector_would_refuse_is_removed_and_renamed_nowhere(
    stores: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, archived: bool
) -> None:
    commands = [["rm", "run0"], ["mv", "run0", "new"], ["gc", "--max-size", "1B"]]
    if archived:  # what the collector refuses is then to forget the run
        leave(stores[2], tmp_path / "archive")
        del commands[1:]
    files = [tmp_path / f"{rank}.toml" for rank in range(3)]
    token = issue_token(files[0], "keeper", ["read", "delete"], ["*"])
    monkeypatch.setenv("ANCHOR_TOKEN", token)
    for file in files[1:]:
        shutil.copy(files[0], file)  # which is private, and so is the copy
    files[2].write_text(files[0].read_text().replace(', "delete"', ""))
    with ExitStack() as served:
        made = [
            served.enter_context(serve(place, access=file))
            for place, file in zip(stores, files, strict=True)
        ]
        everywhere = ",".join(one.address for one in made)
        for words in commands:
            done = anchor(*words, "--store", f"grpc://{everywhere}")
            assert done.code == 4
            assert f"{made[2].address} would not change run 'run0': token 'keeper'" in done.err
            assert "nothing was changed" in done.err
            assert [names(place) for place in stores] == [["run0"]] * 3


def test_a_removal_asks_each_collector_once_about_the_run(
    stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    standing = KeeperClient.standing

    def noted(self: KeeperClient, run: str) -> object:
        asked.append(str(self.address))
        return standing(self, run)

    monkeypatch.setattr(KeeperClient, "standing", noted)
    with ExitStack() as served:
        places = [served.enter_context(serve(place)).address for place in stores]
        assert anchor("rm", "run0", "--store", f"grpc://{','.join(places)}").code == 0
    assert sorted(asked) == sorted(f"grpc://{place}" for place in places)


def test_a_run_that_leaves_for_its_archive_while_it_is_removed_or_renamed_is_told_of_as_such(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaving(type(keeper_at(str(store)))):  # type: ignore[misc]
        def remove(self, run: str, **how: object) -> int:
            leave(store, tmp_path / "archive", run)
            return super().remove(run, **how)

        def rename(self, run: str, name: str) -> None:
            leave(store, tmp_path / "archive", run)
            super().rename(run, name)

    monkeypatch.setattr("anchorlib.upkeep.store_keepers._LocalKeeper", Leaving)
    gone = anchor("rm", "run0", "--store", store)
    assert (gone.code, gone.out) == (0, "run0: forgotten; its archive keeps it\n")
    renamed = anchor("mv", "run1", "new", "--store", store)
    assert (renamed.code, renamed.err.count("\n")) == (2, 1)
    assert (
        "run 'run1' left for its archive a moment ago, and nothing is renamed there" in renamed.err
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", [["rm", "run0"], ["gc", "--max-size", "1B"]])
def test_a_removal_that_a_collector_does_not_end_says_what_is_gone_and_ends_when_repeated(
    stores: list[Path], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    remove = KeeperClient.remove
    with ExitStack() as served:
        first, second, third = [served.enter_context(serve(place)).address for place in stores]
        everywhere = f"grpc://{first},{second},{third}"

        def fails(self: KeeperClient, run: str, **options: int) -> int:
            if str(self.address).endswith(second):
                raise CollectorError("it went away")
            return remove(self, run, **options)

        with monkeypatch.context() as patch:
            patch.setattr(KeeperClient, "remove", fails)
            done = anchor(*command, "--store", everywhere)
        assert (done.code, done.err.count("\n")) == (4, 1)
        assert "run 'run0' is removed in part: removed at " in done.err
        assert f"{first} (" in done.err
        assert (
            f"{second} did not confirm it, and grpc://{third} not asked: it went away" in done.err
        )
        assert [names(place) for place in stores] == [[], ["run0"], ["run0"]]
        listed = anchor("runs", "--store", everywhere, "--json")
        assert (listed.code, [one["missing"] for one in listed.json]) == (0, [[0]])
        assert (
            "run0 has no record of rank 0: unless `ranks=` or ANCHOR_RANKS left that out, the "
            "run was removed in part, and `anchor rm run0` with the same --store removes the rest"
            in listed.err
        )
        assert anchor(*command, "--store", everywhere).code == 0
        assert [names(place) for place in stores] == [[], [], []]


def test_a_collector_whose_answer_is_lost_is_asked_again_and_takes_the_name_back(
    stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, measure, away = KeeperClient.rename, KeeperClient.measure, False
    with ExitStack() as served:
        first, second, third = [served.enter_context(serve(place)).address for place in stores]
        command = ["mv", "run0", "new", "--store", f"grpc://{first},{second},{third}"]
        lost = ""

        def loses(self: KeeperClient, run: str, name: str) -> None:
            nonlocal lost
            if str(self.address) == lost:
                raise CollectorError("it went away")
            rename(self, run, name)
            if name == "new" and str(self.address).endswith(second):
                lost = str(self.address) if away else ""
                raise CollectorError("the answer is lost")

        def asked(self: KeeperClient, run: str) -> tuple[int, bool]:
            if str(self.address) == lost:
                raise CollectorError("it went away")
            return measure(self, run)

        monkeypatch.setattr(KeeperClient, "rename", loses)
        monkeypatch.setattr(KeeperClient, "measure", asked)
        done = anchor(*command)
        assert (done.code, done.err) == (4, "anchor: the answer is lost\n")
        assert [names(place) for place in stores] == [["run0"]] * 3
        away = True
        done = anchor(*command)
    assert (done.code, done.err.count("\n")) == (4, 1)
    assert f"(the answer is lost), and is called 'new' at grpc://{second} (perhaps):" in done.err
    assert [names(place) for place in stores] == [["run0"], ["new"], ["run0"]]


def test_the_first_collector_whose_answer_to_a_removal_is_lost_is_named(
    stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = KeeperClient.remove
    with ExitStack() as served:
        first, second, third = [served.enter_context(serve(place)).address for place in stores]
        everywhere = f"grpc://{first},{second},{third}"

        def loses(self: KeeperClient, run: str, **options: int) -> int:
            remove(self, run, **options)
            raise CollectorError("the answer is lost")

        with monkeypatch.context() as patch:
            patch.setattr(KeeperClient, "remove", loses)
            done = anchor("rm", "run0", "--store", everywhere)
        assert (done.code, done.err.count("\n")) == (4, 1)
        told = f"grpc://{first} did not confirm it, and grpc://{second}, grpc://{third} not asked:"
        assert f"run 'run0' may be removed in part; {told} the answer is lost" in done.err
        assert [names(place) for place in stores] == [[], ["run0"], ["run0"]]
        assert anchor("rm", "run0", "--store", everywhere).code == 0
        assert [names(place) for place in stores] == [[], [], []]


def test_a_name_that_cannot_be_given_back_is_told(
    stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = KeeperClient.rename
    with ExitStack() as served:
        first, second, third = [served.enter_context(serve(place)).address for place in stores]

        def fails(self: KeeperClient, run: str, name: str) -> None:
            if str(self.address).endswith(third) or (
                name == "run0" and str(self.address).endswith(second)
            ):
                raise CollectorError("it went away")
            rename(self, run, name)

        monkeypatch.setattr(KeeperClient, "rename", fails)
        done = anchor("mv", "run0", "new", "--store", f"grpc://{first},{second},{third}")
    assert (done.code, done.err.count("\n")) == (4, 1)
    assert f"(it went away), and is called 'new' at grpc://{second}: rename it back" in done.err
    assert [names(place) for place in stores] == [["run0"], ["new"], ["run0"]]


def test_a_run_may_be_named_by_its_path_or_its_url(store: Path) -> None:
    assert anchor("mv", store / "run0.zarr", "new").code == 0
    with serve(store) as collector:
        assert anchor("rm", f"grpc://{collector.address}/run1/").code == 0
    assert anchor("rm", f"{store}/run2.zarr/").code == 0
    assert names(store) == ["new"]


def test_a_run_outside_a_store_is_left_to_its_owner(store: Path) -> None:
    (store / "run0.zarr").rename(store / "copy")
    done = anchor("rm", f"{store}/copy")
    assert (done.code, (store / "copy").is_dir()) == (2, True)
    assert "outside a store" in done.err


@pytest.mark.slow
def test_gc_by_age_says_first_what_would_go(
    store: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(monkeypatch, 40)
    make_run(store, [record()], "fresh")
    planned = anchor("gc", "--older-than", "30d", "--keep-last", "2", "--dry-run", "--store", place)
    assert planned.code == 0
    assert planned.out.splitlines()[-1].startswith("2 runs would be removed, ")
    assert names(store) == ["fresh", "run0", "run1", "run2"]
    done = anchor("gc", "--older-than", "30d", "--keep-last", "2", "--store", place)
    assert done.code == 0
    assert done.out.splitlines()[-1].startswith("2 runs removed, ")
    assert names(store) == ["fresh", "run2"]


def test_gc_by_size_removes_the_oldest_until_the_rest_fits(store: Path, place: str) -> None:
    sizes = {
        one["run"]: one["disk"]
        for one in anchor("gc", "--max-size", "1B", "--dry-run", "--json", "--store", place).json[
            "removed"
        ]
    }
    most = sizes["run1"] + sizes["run2"]
    done = anchor("gc", "--max-size", f"{most}B", "--store", place, "--json")
    assert [one["run"] for one in done.json["removed"]] == ["run0"]
    assert done.json["freed"] > 0
    assert names(store) == ["run1", "run2"]


def test_gc_keeps_no_link_in_the_place_of_a_run(store: Path, place: str) -> None:
    (store / "zlast.zarr").symlink_to("run2.zarr")
    done = anchor("gc", "--keep-last", "1", "--store", place)
    assert (done.code, done.err) == (0, "")
    assert names(store) == ["run2", "zlast"]


def test_gc_leaves_what_it_cannot_read_and_what_was_never_closed(store: Path, place: str) -> None:
    make_run(store, [record()], "open", close=False)
    catalogue = store / "run1.zarr/rank0/catalog/c.0"
    catalogue.write_bytes(catalogue.read_bytes().replace(b'"series"', b'"sXries"'))
    done = anchor("gc", "--keep-last", "0", "--store", place)
    assert done.code == 3
    assert "run1 cannot be read, and stays: " in done.err
    assert names(store) == ["open", "run1"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "say which runs to remove"),
        (["--older-than", "soon"], "is no time"),
        (["--older-than", ""], "is no time"),
        (["--older-than", "30"], "write 30d for days"),
        (["--older-than", "9" * 400 + "d"], "is no time"),
        (["--older-than", "99999999d"], "is no time"),
        (["--max-size", "big"], "--max-size"),
        (["--max-size", "9" * 400 + "B"], "is no size"),
        (["--max-size", "5"], "write 5GB, or B"),
        (["--max-size", " 0 "], "write 0GB, or B"),
        (["--max-size", "5XB"], "is no size"),
        (["--keep-last", "-1"], "keep-last"),
    ],
)
def test_gc_with_wrong_limits_removes_nothing(store: Path, given: list[str], said: str) -> None:
    done = anchor("gc", *given, "--store", store)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err
    assert names(store) == ["run0", "run1", "run2"]


def test_the_next_command_ends_a_removal_that_was_interrupted(store: Path) -> None:
    removed = store / ".anchor" / "removed"
    removed.mkdir()
    (store / "run0.zarr").rename(removed / "run0.zarr.5f0ca6aa")
    done = anchor("rm", "run1", "--store", store)
    assert "ended 1 removal that had been interrupted" in done.err
    assert list(removed.iterdir()) == []
    (store / "run2.zarr").rename(removed / "run2.zarr.5f0ca6aa")
    with serve(store):
        end = time.monotonic() + 30
        while list(removed.iterdir()) and time.monotonic() < end:
            time.sleep(0.01)
    assert list(removed.iterdir()) == []


def test_a_collector_says_what_of_a_removal_it_cannot_end(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = "run0.zarr.5f0ca6aa cannot be deleted"
    monkeypatch.setattr("anchor_server.address_and_store.finish_removals", lambda _: (0, [problem]))
    with serve(store):
        until(lambda: problem in caplog.text)


def test_spools_that_wait_for_a_run_are_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANCHOR_SPOOL", str(tmp_path / "my spools"))
    label = SpoolLabel("run0", 3, "00" * 16, "grpc://127.0.0.1:1", 0)
    spool = tmp_path / "my spools" / label.folder
    spool.mkdir(parents=True)
    (spool / "spool.json").write_text(label.text())
    done = anchor("mv", "run0", "new", "--store", store)
    assert done.code == 0
    assert f"anchor push '{spool}' --to grpc://127.0.0.1:1 --as new" in done.err
