"""What is installed from the wheel is all there is, and it runs without this directory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
import typer.main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import anchorlib
from anchor_cli.main import app
from tests.docs.blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PURE = f"anchorlib-{anchorlib.__version__}-py3-none-any.whl"
BUILD = "from hatchling.build import build_wheel; build_wheel({!r})"
# What `pip install -e` has hatchling do first; the rest takes a package that it would fetch.
EDITABLE = """
from hatchling.builders.wheel import WheelBuilder
builder = WheelBuilder(".")
data = builder.get_default_build_data()
builder.set_build_data_defaults(data)
for hook in builder.get_build_hooks("dist").values():
    hook.initialize("editable", data)
"""
PACKAGES = {"anchorlib": ROOT, "anchor_server": ROOT / "server", "anchor_cli": ROOT / "cli"}
EVERY_IMPORT = """
import importlib, pathlib, pkgutil, sys
import anchor_cli, anchor_server, anchorlib
for package in (anchorlib, anchor_server, anchor_cli):
    assert pathlib.Path(package.__file__).is_relative_to(sys.prefix), package.__file__
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.ispkg:
            importlib.import_module(module.name)
"""


# The compiled put of this Python, where it is built; it is not a source.
COMPILED = f"anchorlib/recorder/_put{sysconfig.get_config_var('EXT_SUFFIX')}"
# What Python executes at its start lies beside the packages.
LINE = "anchorlib/launch/anchorlib_watch.pth"


def run(*command, **options):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources():
    """Every file of the three packages, by its path in the wheel."""
    files = {
        path.relative_to(root).as_posix()
        for name, root in PACKAGES.items()
        for path in (root / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    return files - {LINE} | {Path(LINE).name}


def contents(wheel):
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def unpacked(made, folder):
    """The sdist's tree."""
    [sdist] = made.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The sdist, and the wheel that is built from it; nothing is fetched."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(made, tmp_path_factory):
    """A new environment that has the wheel, and sees the dependencies that are here."""
    place = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", place)
    [wheel] = made.glob("*.whl")
    python = place / "bin" / "python"
    options = ["--no-deps", "--no-index", "--no-compile", "-q", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
    [own] = place.glob("lib/python*/site-packages")
    # A path in a .pth file adds what is installed there, not the .pth files that lie there:
    # so this directory, which is installed by one, stays unseen.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return place / "bin"


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(made):
    [wheel] = made.glob("*.whl")
    names = contents(wheel)
    assert names - {COMPILED} == sources()
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert any(name.startswith("anchorlib/report/assets/") for name in names)


@pytest.mark.slow
def test_a_wheel_with_the_compiled_put_is_for_this_python_and_machine_alone(made):
    [wheel] = made.glob("*.whl")
    is_pure = wheel.name == PURE
    assert is_pure == (COMPILED not in contents(wheel))
    assert is_pure or wheel.name.startswith(f"anchorlib-{anchorlib.__version__}-cp3")
    if shutil.which("cc"):
        assert not is_pure


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [{"ANCHORLIB_NO_EXTENSION": "1"}, {"CC": sys.executable}, {"PATH": "/nowhere", "CC": ""}],
    ids=["unwanted", "a compiler that fails", "no compiler"],
)
def test_where_nothing_is_compiled_the_wheel_is_pure_and_has_all_the_rest(
    made, tmp_path, monkeypatch, variables
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run(sys.executable, "-c", BUILD.format(str(tmp_path)), cwd=unpacked(made, tmp_path))
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == PURE
    assert contents(wheel) == sources()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler here")
def test_an_editable_installation_has_the_compiled_put_in_the_tree(made, tmp_path):
    tree = unpacked(made, tmp_path)
    run(sys.executable, "-c", EDITABLE, cwd=tree)
    assert (tree / COMPILED).is_file()


@pytest.mark.slow
def test_the_sdist_has_what_it_takes_to_work_on_it(made):
    [sdist] = made.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ["pyproject.toml", "constraints.txt", "Makefile", "LICENSE", "README.md"]
    assert {*wanted, "CHANGELOG.md", "docs/conf.py", "tests/conftest.py"} <= names
    assert not any(name.startswith(("docs/_build", ".venv", "anchors")) for name in names)


@pytest.mark.slow
def test_the_wheel_says_what_it_is(made):
    [wheel] = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("METADATA")]
        told = Parser().parsestr(archive.read(name).decode())
    assert told["Version"] == anchorlib.__version__
    assert told["License-Expression"] == "Apache-2.0"
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["project"]["optional-dependencies"])
    assert told.get_payload().startswith("# anchorlib")


@pytest.mark.long
def test_every_package_imports_from_the_wheel(made, installed, tmp_path):
    run(installed / "python", "-c", EVERY_IMPORT, cwd=tmp_path)
    [wheel] = made.glob("*.whl")
    if COMPILED in contents(wheel):
        run(installed / "python", "-c", "import anchorlib.recorder._put", cwd=tmp_path)


@pytest.mark.long
def test_the_demo_runs_from_the_wheel(installed, tmp_path):
    assert run(installed / "anchor", "--help", cwd=tmp_path).startswith("Usage: anchor")
    example = ROOT / "examples" / "gradient_histogram.py"
    options = ["--store", tmp_path, "--run", "demo", "--epochs", "1"]
    assert "fc3.weight" in run(installed / "python", example, *options, cwd=tmp_path)
    where = ["demo", "--store", tmp_path]
    assert "fc3.weight" in run(installed / "anchor", "names", *where, cwd=tmp_path)
    run(installed / "anchor", "report", *where, "-o", "demo.html", cwd=tmp_path)
    assert "<script" in (tmp_path / "demo.html").read_text(encoding="utf-8")


def test_the_version_stands_in_one_place_and_whatever_repeats_it_says_the_same():
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "anchorlib/__init__.py"
    released = Version(anchorlib.__version__).base_version
    repeated = {
        "CITATION.cff": r"^version: (\S+)$",
        "examples/cluster/Containerfile": r"-t anchorlib:(\S+)",
        "examples/cluster/collectors.yaml": r"/anchorlib:(\S+)",
    }
    for path, pattern in repeated.items():
        said = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert said == [released], path


def test_the_pythons_that_are_claimed_are_those_that_the_readme_names():
    named = "Programming Language :: Python :: 3."
    claimed = [
        line.removeprefix(named) for line in PROJECT["project"]["classifiers"] if named in line
    ]
    assert PROJECT["project"]["requires-python"] == f">=3.{claimed[0]}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    *first, last = [f"3.{minor}" for minor in claimed]
    assert f"With Python {', '.join(first)} or {last}" in readme


def test_the_readme_names_the_extras_there_are():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| extra | for |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(named) == sorted(PROJECT["project"]["optional-dependencies"])


def test_whatever_an_error_tells_to_install_is_an_extra():
    told = {
        name
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*.py")
        for name in re.findall(r"pip install 'anchorlib\[(\w+)\]'", path.read_text("utf-8"))
    }
    assert told
    assert told <= set(PROJECT["project"]["optional-dependencies"])


def test_the_changes_name_every_command():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`anchor ([^`]+)`", changes))))
    assert set(typer.main.get_command(app).commands) - named == set()


@pytest.mark.slow
def test_every_package_of_the_development_environment_is_pinned():
    lines = Path(ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in lines
        if line and not line.startswith("#")
    }
    assert needed() - pinned == set()


def needed():
    """The names of all that the development environment takes, and what these take in turn."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = PROJECT["dependency-groups"]
    given = [line for line in groups["dev"] if line != {"include-group": "demo"}]
    named = [*given, *groups["demo"], *PROJECT["project"]["dependencies"]]
    todo = [Requirement(line) for line in (*named, *(line for lines in extras for line in lines))]
    seen = set()
    while todo:
        one = todo.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen or key[0] == "anchorlib":
            continue
        seen.add(key)
        for line in distribution(one.name).requires or []:
            inner = Requirement(line)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in (one.extras or {""})
            ):
                todo.append(inner)
    return {name for name, _ in seen}
