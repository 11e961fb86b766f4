"""Whether the wheel installs on each Python, and whether its demo computes the same bits there.

    python -m tests.packaging.matrix [python3.11 python3.12 …] [-c constraints.txt]
        [--torch oldest] [--keep FOLDER]

Each interpreter that is named (else each one on PATH that `requires-python` admits) gets a new
environment, which is used twice. First pip installs the pure wheel, and the demo runs with a PATH
that holds the environment's own commands and nothing else: no compiler, no make, no git. Then,
where the machine has a C compiler, pip installs the source distribution in the wheel's place, which
compiles the put, and the demo runs again. `anchor compare` holds each run against the first one.
Prints a table, and ends with 1 where an installation or a demo failed. Which torch is installed is
pip's choice unless `-c` or `--torch` says it; with CUDA an environment takes some 8 GB, and it is
removed before the next one is made.

`--torch` takes a requirement (`torch==2.9.*`, the path of a wheel), or `oldest`: the oldest torch
that pyproject.toml admits. What constraints pin of torch, and of what torch requires, then does not
hold. pip looks where it is told to (PIP_FIND_LINKS, PIP_INDEX_URL); a torch that it cannot have is
a row that failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DEMO = PROJECT["dependency-groups"]["demo"]
GRADIENTS = r"re:fc[123]\.(weight|bias)@grad"
HEADINGS = ("python", "torch", "compiler", "put", "demo")
_COMPILED = "import anchorlib.recorder._put"
_VERSIONS = "import platform, torch; print(platform.python_version(), torch.__version__)"
_NEWEST_MINOR = 20  # of a Python 3 that is looked for on PATH


class FailedError(Exception):
    """A command ended otherwise than with 0."""


@dataclass(frozen=True)
class Row:
    """What one installation on one Python came to."""

    python: str
    torch: str
    compiler: bool
    put: str
    demo: str
    passed: bool

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `HEADINGS`."""
        return (self.python, self.torch, "yes" if self.compiler else "no", self.put, self.demo)


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the PATH that commands in it have."""

    folder: Path
    path: str

    def run(self, *command: object, allowed: Sequence[int] = (0,)) -> str:
        """The output of a command of this environment; FailedError with its last line."""
        program = self.folder / "bin" / str(command[0])
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ANCHOR", "PYTHON", "VIRTUAL_ENV"))
        }
        words = [str(program), *map(str, command[1:])]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd=self.folder,
            env={**variables, "PATH": self.path, "CC": ""},
        )  # fmt: skip
        if done.returncode not in allowed:
            said = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
            raise FailedError(f"{command[0]} {command[1]}: {said[-1]}")
        return done.stdout

    def pip(self, *words: object) -> None:
        """Install into this environment."""
        self.run("python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *words)

    def with_path(self, path: str) -> Environment:
        """The same environment with another PATH."""
        return Environment(self.folder, path)


def pythons_on_path(required: str) -> list[str]:
    """The interpreters `python3.N` on PATH that start and are not older than `required`."""
    floor = int(re.search(r">=3\.(\d+)", required)[1])  # type: ignore[index]
    names = (f"python3.{minor}" for minor in range(floor, _NEWEST_MINOR))
    return [name for name in names if starts(name)]


def starts(name: str) -> bool:
    """Whether there is such a command and it is a Python: a version manager has names of others."""
    if shutil.which(name) is None:
        return False
    return subprocess.run([name, "-V"], capture_output=True, check=False).returncode == 0


def built(folder: Path) -> tuple[Path, Path]:
    """The source distribution, and the pure wheel that is made of it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    variables = {**os.environ, "ANCHORLIB_NO_EXTENSION": "1"}
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    [source], [wheel] = folder.glob("*.tar.gz"), folder.glob("*-none-any.whl")
    return source, wheel


def environment_of(python: str, folder: Path) -> Environment:
    """A new environment of `python`; its PATH holds its own commands and nothing else."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    return Environment(folder, str(folder / "bin"))


def demo(environment: Environment, name: str, store: Path, *, first: str) -> str:
    """Run what `make demo` runs; the verdict of this run beside that of the `first` row."""
    where = [name, "--store", store]
    hist = [*where, "--tensor", GRADIENTS]
    environment.run("python", ROOT / "examples" / "gradient_histogram.py",
                    "--store", store, "--run", name)  # fmt: skip
    names = environment.run("anchor", "names", *where)
    if "fc3.weight" not in names:
        raise FailedError("anchor names: no gradient of fc3.weight")
    environment.run("anchor", "hist", *hist, "--as", "fp16")
    environment.run("anchor", "hist", *hist, "-o", store / f"{name}.png")
    environment.run("anchor", "report", *where, "-o", store / f"{name}.html")
    if name == first:
        return "ran"
    said = environment.run("anchor", "compare", first, name, "--store", store, "--json",
                           allowed=(0, 1))  # fmt: skip
    return verdict(json.loads(said))


def verdict(answer: dict[str, object]) -> str:
    """How a demo's run compares with the first one, in a word or two."""
    word = str(answer["verdict"])
    return "the same bits" if word == "identical" else word


def rows_of(
    python: str, place: Path, made: tuple[Path, Path], options: argparse.Namespace
) -> Iterator[Row]:
    """Both rows of one interpreter; the second one only where there is a compiler."""
    source, wheel = made
    bare = environment_of(python, place / python.replace("/", "_").strip("_"))
    pins = [word for file in options.constraint for word in ("-c", file.resolve())]
    if options.torch:
        pins = ["-c", without_torch(options.constraint, place)]
    wanted = [*DEMO, *([requirement(options.torch)] if options.torch else []), *pins]
    yield row(bare, [wheel, *wanted], place, options)
    if shutil.which("cc"):
        compiling = bare.with_path(os.pathsep.join((bare.path, os.environ["PATH"])))
        yield row(compiling, ["--no-deps", "--force-reinstall", source], place, options)
    if not options.keep:
        shutil.rmtree(bare.folder)  # gigabytes, where torch comes with CUDA


def requirement(torch: str) -> str:
    """What pip is asked for: `torch` itself, or the oldest one that the project admits."""
    if torch != "oldest":
        return torch
    [floor] = [
        line.removeprefix("torch>=")
        for line in PROJECT["project"]["dependencies"]
        if line.startswith("torch>=")
    ]
    return f"torch=={floor}.*"


def without_torch(constraints: Sequence[Path], folder: Path) -> Path:
    """A file in `folder` with the lines of these constraints, but those that pin torch.

    Those that pin what torch requires go too: each torch wants another version of sympy.
    """
    required = [re.split(r"[^\w.-]", one)[0] for one in importlib.metadata.requires("torch") or []]
    free = {name.lower().replace("_", "-") for name in ("torch", *required)}
    lines = [
        line
        for file in constraints
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") not in free
    ]
    kept = folder / "constraints-without-torch.txt"
    kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return kept


def row(
    environment: Environment, install: Sequence[object], place: Path, options: argparse.Namespace
) -> Row:
    """Install, run the demo, and say what it came to."""
    has_compiler = shutil.which("cc", path=environment.path) is not None
    python, torch, put = environment.folder.name, "", ""
    try:
        environment.pip(*install)
        python, torch = environment.run("python", "-c", _VERSIONS).split()
        put = put_of(environment)
        options.first = options.first or f"py{python}"
        name = f"py{python}-compiled" if has_compiler else f"py{python}"
        told = demo(environment, name, place / "store", first=options.first)
    except FailedError as failure:
        return Row(python, torch, has_compiler, put, str(failure), passed=False)
    return Row(python, torch, has_compiler, put, told, passed=True)


def put_of(environment: Environment) -> str:
    """Whether the installation has the compiled put."""
    try:
        environment.run("python", "-c", _COMPILED)
    except FailedError:
        return "Python"
    return "compiled"


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Try each interpreter; 1 where one of them failed or there is none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", help="interpreters (default: all on PATH)")
    parser.add_argument("--torch", help="a requirement of pip's, or: oldest")
    parser.add_argument("-c", "--constraint", type=Path, action="append", default=[])
    parser.add_argument("--keep", type=Path, help="where environments and runs are made and left")
    options = parser.parse_args()
    options.first = ""
    pythons = options.pythons or pythons_on_path(PROJECT["project"]["requires-python"])
    rows = []
    with tempfile.TemporaryDirectory(prefix="anchorlib-matrix-") as temporary:
        place = options.keep.resolve() if options.keep else Path(temporary)
        made = built(place / "dist")
        for python in pythons:
            rows += rows_of(python, place, made, options)
            print(table(rows[-2:]), flush=True)
    print(f"\n{table(rows)}")
    return 0 if rows and all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
