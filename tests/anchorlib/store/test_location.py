"""Every Location keeps the same promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorlib.store import CollectorLocation, LocalLocation, Location, Within
from tests.anchorlib.store.locations import LocationPromises, fill


class TestLocal(LocationPromises):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        fill(tmp_path / "store")
        return LocalLocation(tmp_path / "store")


class TestWithin(LocationPromises):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        fill(tmp_path / "outer" / "store")
        return Within(LocalLocation(tmp_path / "outer"), "store")


class TestClient(LocationPromises):
    """A collector's client answers with the same two verbs."""

    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        fill(tmp_path / "store")
        return CollectorLocation(LocalLocation(tmp_path / "store"))
