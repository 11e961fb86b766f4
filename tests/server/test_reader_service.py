"""What a collector gives out of its store, and what it keeps to itself."""

from __future__ import annotations

import errno
import os

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchor_server import serve
from anchorlib.errors import CollectorError, StoreError
from anchorlib.wire import READ_BYTES, ReaderClient


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("outer") / "store"
    (root / "run1.zarr" / "rank0").mkdir(parents=True)
    (root / "run1.zarr" / "zarr.json").write_bytes(b"{}")
    (root / "run1.zarr" / "rank0" / "c.0").write_bytes(bytes(range(256)))
    (root / "run1.zarr" / "empty").write_bytes(b"")
    (root / ".anchor").mkdir()
    (root / ".anchor" / "lock").write_bytes(b"secret")
    (root.parent / "outside").write_bytes(b"secret")
    (root / "leak").symlink_to(root.parent)
    (root / "hole").symlink_to(root / ".anchor")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture(scope="module")
def reader(store):
    with serve(store) as collector, ReaderClient(f"grpc://{collector.address}/run1") as reader:
        yield reader


def test_files_and_folders_are_listed_folders_with_a_slash(reader):
    assert reader.list("run1.zarr") == ["empty", "rank0/", "zarr.json"]
    assert reader.list("run1.zarr/") == reader.list("run1.zarr")
    assert "run1.zarr/" in reader.list()
    assert reader.list("nowhere") == reader.list("run1.zarr/zarr.json") == []


def test_nothing_hidden_is_listed(reader):
    assert ".anchor/" not in reader.list()


@given(st.integers(0, 300), st.none() | st.integers(0, 300))
def test_a_range_is_that_part_of_the_file(reader, start, length):
    end = None if length is None else start + length
    assert reader.get("run1.zarr/rank0/c.0", start, length) == bytes(range(256))[start:end]


@pytest.mark.parametrize(
    "key", ["nothing", "run1.zarr", "run1.zarr/", "run1.zarr/zarr.json/x", "x" * 4000, "\u202e"]
)
def test_what_is_not_a_file_is_not_there(reader, key):
    if key.endswith("/"):
        with pytest.raises(CollectorError, match="no key of a store"):
            reader.get(key)
    else:
        assert reader.get(key) is None
        assert reader.get(key, 0, 0) is None


def test_an_empty_file_is_there(reader):
    assert reader.get("run1.zarr/empty") == b""
    assert reader.get("run1.zarr/empty", 0, 0) == b""
    assert reader.get("run1.zarr/empty", 5, 5) == b""


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../outside",
        "run1.zarr/../../outside",
        "run1.zarr/./zarr.json",
        "run1.zarr//zarr.json",
        ".anchor/lock",
        "a\0b",
    ],
)
def test_no_key_leads_out_of_the_store_or_into_what_is_hidden(reader, key):
    with pytest.raises(CollectorError, match="no key of a store"):
        reader.get(key)
    if key:
        with pytest.raises(CollectorError, match="no key of a store"):
            reader.list(key)


@pytest.mark.parametrize("key", ["leak/outside", "hole/lock"])
def test_no_link_leads_out_of_the_store_or_into_what_is_hidden(reader, key):
    for ask in (reader.get, reader.list):
        with pytest.raises(StoreError, match="leads out of the store"):
            ask(key)


@pytest.mark.parametrize(("key", "what"), [("pipe", "a pipe"), ("loop", "a link")])
def test_pipes_and_loops_in_the_store_hold_nobody_up(reader, key, what):
    with pytest.raises(StoreError, match=f"{key} is {what}"):
        reader.get(key)


def test_a_run_may_have_a_second_name_in_its_store_but_no_link_inside(store, reader):
    (store / "latest.zarr").symlink_to("run1.zarr")
    assert reader.get("latest.zarr/rank0/c.0") == bytes(range(256))
    (store / "run2.zarr").mkdir()
    (store / "run2.zarr" / "rank0").symlink_to(store / "run1.zarr" / "rank0")
    with pytest.raises(StoreError, match=r"run2\.zarr/rank0 is a link"):
        reader.get("run2.zarr/rank0/c.0")


def test_a_file_that_may_not_be_read_is_no_fault_of_the_collector(reader, monkeypatch):
    def refuse(*_: object) -> None:  # root, who may run the tests, may read everything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("anchor_server.reader_service.open_beneath", refuse)
    with pytest.raises(StoreError, match=r"cannot read 'run1\.zarr/closed': Permission denied"):
        reader.get("run1.zarr/closed")


KEYS = st.text(st.sampled_from("abr./\\\0 zarrun1.json\u202e"), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KEYS)
def test_whatever_the_key_the_secret_stays(reader, key):
    try:
        found = reader.get(key)
    except (CollectorError, StoreError):
        found = None
    assert found is None or b"secret" not in found


def test_a_large_file_comes_in_parts(store, reader):
    data = os.urandom(2 * READ_BYTES + 5)
    (store / "large").write_bytes(data)
    assert reader.get("large") == data
    assert reader.get("large", 3, READ_BYTES + 1) == data[3 : READ_BYTES + 4]


def test_a_large_folder_comes_in_parts(store, reader, monkeypatch):
    monkeypatch.setattr("anchor_server.reader_service.LISTED_BYTES", 1000)
    names = sorted(f"{number:05}-{'x' * 200}" for number in range(50))
    (store / "many").mkdir()
    for name in names:
        (store / "many" / name).touch()
    assert reader.list("many") == names


def test_an_unreachable_collector_is_named_with_what_to_do(tmp_path):
    with serve(tmp_path) as collector:
        address = f"grpc://{collector.address}"
    with (
        ReaderClient(address, timeout=5) as reader,
        pytest.raises(CollectorError, match=f"{address}.*is `anchor serve` running"),
    ):
        reader.get("run1.zarr/zarr.json")


def test_what_answers_but_is_no_collector_is_called_so(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as threads:
        server = grpc.server(threads)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with (
            ReaderClient(f"grpc://127.0.0.1:{port}") as reader,
            pytest.raises(CollectorError, match="no collector of this protocol"),
        ):
            reader.list()
        server.stop(None).wait()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_so_instead_of_left_hanging(reader):
    assert reader.list()
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        try:
            reader.list()
        except CollectorError as error:
            os.write(theirs, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"opened before this process was forked" in os.read(ours, 1000)
    os.close(ours)
    os.close(theirs)
