"""docs/design.md knows every room: what it is, and what to read first; so does the picture."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET

import pytest

from tests.docs.blocks import ROOT

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
HOMES = {"anchor_server": ROOT / "server", "anchor_cli": ROOT / "cli"}
FILES_OF_A_FOLDER = 3


def rooms():
    """The rooms of the layer contract, from the one that imports nothing to the one on top."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    [inside] = [one for one in contracts if one["name"] == "inside anchorlib"]
    layers = [re.split(r" [|:] ", layer) for layer in reversed(inside["layers"])]
    return [*layers, ["anchor_server"], ["anchor_cli"]]


def rows():
    """Each row of the table of rooms: the room, what it is, the files to read first."""
    table = DESIGN.partition("| room | what it is | read first |\n|---|---|---|\n")[2]
    for line in table.partition("\n\n")[0].splitlines():
        room, what, files = (cell.strip() for cell in line.strip("|").split(" | "))
        yield room.strip("`"), what, re.findall(r"`([^`]+)`", files)


def test_every_room_of_the_contract_has_its_row_in_the_order_of_imports():
    named = [room for room, _, _ in rows()]
    at = 0
    for layer in rooms():
        assert set(named[at : at + len(layer)]) == set(layer)
        at += len(layer)
    assert named[at:] == []


@pytest.mark.parametrize(("room", "what", "files"), list(rows()))
def test_a_room_has_two_sentences_and_files_that_are_there(room, what, files):
    assert len(re.findall(r"\.(?= [A-Z]|$)", what)) == 2
    folder = HOMES.get(room, ROOT / "anchorlib") / room
    if folder.is_dir():
        assert len(set(files)) == FILES_OF_A_FOLDER
        assert [name for name in files if not (folder / name).is_file()] == []
    else:
        assert files == [f"{room}.py"]
        assert folder.with_suffix(".py").is_file()


def rooms_inside():
    """Each row of the tables of rooms inside a folder: the folder, its rooms, the files to read."""
    for heading, table in re.findall(
        r"\| `([\w/]+/)` \| holds \| read first \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", DESIGN
    ):
        for line in table.splitlines():
            rooms, _, files = (cell.strip() for cell in line.strip("|").split(" | "))
            yield ROOT / heading, re.findall(r"`(\w+)`", rooms), re.findall(r"`(\w+)`", files)


@pytest.mark.parametrize(
    ("folder", "inside", "files"),
    [pytest.param(*row, id=f"{row[0].name}-{'-'.join(row[1])}") for row in rooms_inside()],
)
def test_a_room_inside_a_folder_is_there_with_the_files_to_read_first(folder, inside, files):
    assert [name for name in inside if not (folder / name).is_dir()] == []
    assert files
    homes = [folder / name for name in inside] or [folder]
    assert [
        name for name in files if not any((home / f"{name}.py").is_file() for home in homes)
    ] == []


@pytest.mark.parametrize("folder", sorted({row[0] for row in rooms_inside()}))
def test_no_room_inside_a_folder_is_left_out_of_its_table(folder):
    named = {name for home, rooms, _ in rooms_inside() if home == folder for name in rooms}
    generated = {"v1"}
    assert {door.parent.name for door in folder.glob("*/__init__.py")} - generated == named


def test_the_picture_shows_rooms_that_there_are_and_stands_in_the_design_and_on_the_front_page():
    tree = ET.fromstring(PICTURE.read_text(encoding="utf-8"))
    shown = {one.text for one in tree.iter() if one.get("class", "").split()[:1] == ["room"]}
    assert shown
    assert shown <= {room for layer in rooms() for room in layer} | {"anchorlib"}
    for page in (DESIGN, (ROOT / "docs" / "index.md").read_text(encoding="utf-8")):
        assert "(images/architecture.svg)" in page
