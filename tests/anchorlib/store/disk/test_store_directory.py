"""Whom a new store is for: its owner alone, unless the umask or the folder says otherwise."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from anchor_server import own_identity, serve
from anchorlib.store import Writer, make_store


@pytest.fixture
def folder(tmp_path):
    """A folder that is nobody else's; the umask is put back afterwards."""
    before = os.umask(0o022)
    made = tmp_path / "folder"
    made.mkdir(mode=0o755)
    yield made
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def by_session(store: Path) -> None:
    Writer.open(store, "run1", 0).close()


def by_collector(store: Path) -> None:
    with serve(store):
        pass


def by_self_signed(store: Path) -> None:
    own_identity(store, "127.0.0.1")


@pytest.mark.parametrize("made_by", [by_session, by_collector, by_self_signed])
def test_a_new_store_is_for_its_owner_alone(folder, made_by):
    store = folder / "deep" / "anchors"
    made_by(store)
    assert mode(store) == 0o700
    assert mode(store.parent) == 0o755


@pytest.mark.parametrize("made_by", [by_session, by_collector, by_self_signed])
@pytest.mark.parametrize("kept", [0o755, 0o770, 0o2775])
def test_a_folder_that_is_there_keeps_its_mode(folder, made_by, kept):
    store = folder / "anchors"
    store.mkdir()
    store.chmod(kept)
    made_by(store)
    assert mode(store) == kept


@pytest.mark.parametrize(
    ("umask", "made"),
    [(0o022, 0o700), (0o027, 0o700), (0o077, 0o700), (0o002, 0o770), (0o007, 0o770), (0, 0o770)],
)
def test_an_umask_that_lets_the_group_write_is_honoured(folder, umask, made):
    os.umask(umask)
    make_store(folder / "anchors", fsync=False)
    assert mode(folder / "anchors") == made


@pytest.mark.parametrize(
    ("parent", "made"),
    [(0o755, 0o700), (0o2755, 0o2750), (0o2770, 0o2750), (0o775, 0o750), (0o1777, 0o700)],
)
def test_a_folder_of_a_group_is_honoured_and_one_of_everyone_is_not(folder, parent, made):
    folder.chmod(parent)
    make_store(folder / "anchors", fsync=False)
    assert mode(folder / "anchors") == made


def test_a_default_acl_of_the_folder_is_honoured(folder):
    # user::rwx group::r-x group:4242:r-x mask::r-x other::---, as the kernel keeps it.
    entries = [(1, 7, -1), (4, 5, -1), (8, 5, 4242), (16, 5, -1), (32, 0, -1)]
    packed = b"".join(
        tag.to_bytes(2, "little") + may.to_bytes(2, "little") + (who % 2**32).to_bytes(4, "little")
        for tag, may, who in entries
    )
    try:
        os.setxattr(folder, "system.posix_acl_default", (2).to_bytes(4, "little") + packed)
    except OSError as fault:
        pytest.skip(f"this file system keeps no ACLs: {fault}")
    make_store(folder / "anchors", fsync=False)
    assert mode(folder / "anchors") == 0o750
    assert os.getxattr(folder / "anchors", "system.posix_acl_access")


@pytest.mark.slow
def test_ranks_that_start_together_make_one_store(folder):
    program = (
        "import sys\nfrom pathlib import Path\nfrom anchorlib.store import make_store\n"
        "sys.stdin.read()\nmake_store(Path(sys.argv[1]), fsync=False)\n"
    )
    store = folder / "a" / "b"
    command = [sys.executable, "-c", program, str(store)]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    for rank in ranks:
        rank.stdin.close()
    assert [rank.wait() for rank in ranks] == [0] * 4
    assert mode(store) == 0o700


def test_a_file_in_a_stores_place_is_told(folder):
    (folder / "anchors").write_text("")
    with pytest.raises(NotADirectoryError):
        make_store(folder / "anchors", fsync=False)
