"""A value is made once in a run, also where several processes ask for it at once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.between_workers import made_once


def asked(place: Path) -> bytes:
    def make() -> bytes:
        with (place / "made").open("ab") as file:
            file.write(b"+")
        return b"value"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(place))
        return made_once("one", make)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_first_process_makes_it_and_the_others_read_it(tmp_path):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(asked, [tmp_path] * 9) == [b"value"] * 9
        # The pool ends its processes by SIGTERM, which one that inherits a handler of it outlives.
        pool.close()
        pool.join()
    assert asked(tmp_path) == b"value"
    assert (tmp_path / "made").read_bytes() == b"+"


def test_what_could_not_be_made_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        made_once("one", lambda: bytes(1 // 0))
    assert made_once("one", lambda: b"value") == b"value"
