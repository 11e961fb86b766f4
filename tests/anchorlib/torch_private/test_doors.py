"""torch still has each private name that this project uses, and one package alone uses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from anchorlib.torch_private import DOORS

ROOT = Path(__file__).parents[3]
HOME = ROOT / "anchorlib/torch_private"
PACKAGES = ("anchorlib", "cli/anchor_cli", "server/anchor_server")
FILES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if HOME not in path.parents
]
PRIVATE = re.compile(r"_(?!_)\w+|_+dlpack\w+")
PRIVATE_PART = re.compile(r"\._(?!_)")
SPELLED = re.compile(r"torch(\.\w+)*\._\w+")
NAMING = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef),
    *(ast.Attribute, ast.Name, ast.Constant),
)
ON_TUPLES = {"_replace", "_asdict", "_fields"}
OF_PYTHON = {"sys._getframe", "os._exit"}
LEAVES = {word for name in DOORS for word in re.findall(r"[\w]+", name) if PRIVATE.fullmatch(word)}


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of compilers, when they are loaded
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torch_has(name):
    door = DOORS[name]
    assert door.is_there, f"torch moved {name}: {door.purpose}; without it: {door.loss}"


def test_every_door_says_what_it_is_for_and_what_is_lost_without_it():
    for door in DOORS.values():
        assert door.purpose
        assert door.loss
        assert re.fullmatch(r"2\.\d+", door.since)
        assert door.said.startswith("torch ")
        assert door.said.endswith(f"has no {door.name}: {door.loss}")


def nodes_of(source: str) -> list[ast.AST]:
    """The nodes of a module that may name something."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, NAMING)]


def names_of_torch(nodes: list[ast.AST], own: set[str]) -> Iterator[tuple[int, str]]:
    """Private names of torch in a module of ours: (line, name)."""
    imported = [(node.lineno, path) for node in nodes for path in imports_of(node)]
    yield from ((line, path) for line, path in imported if PRIVATE_PART.search(path))
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_torchs(node, own):
            yield node.lineno, ast.unparse(node)
        if imported and isinstance(node, ast.Constant) and spells_a_door(node.value):
            yield node.lineno, repr(node.value)


def imports_of(node: ast.AST) -> list[str]:
    """What of torch a statement imports."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    paths = [start + alias.name for alias in node.names]
    return [path for path in paths if path.split(".")[0] == "torch"]


def is_torchs(node: ast.Attribute, own: set[str]) -> bool:
    """Whether an attribute is one of torch's, and private; own: names that are ours."""
    if not PRIVATE.fullmatch(node.attr):
        return False
    written = ast.unparse(node)
    if written.startswith("torch."):
        return True
    if written in OF_PYTHON or node.attr in ON_TUPLES or is_self(node.value):
        return False
    return node.attr not in own or node.attr in LEAVES


def spells_a_door(value: object) -> bool:
    return isinstance(value, str) and (value in LEAVES or bool(SPELLED.match(value)))


def is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Private names that classes and modules of ours give to something."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and is_self(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return {name for name in found if PRIVATE.fullmatch(name)}


@pytest.mark.slow
def test_no_other_module_uses_a_private_name_of_torch():
    modules = {path: nodes_of(path.read_text()) for path in FILES if "_pb2" not in path.name}
    own = own_names(chain.from_iterable(modules.values()))
    used = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, nodes in modules.items()
        for line, name in names_of_torch(nodes, own)
    }
    assert used == set()


@pytest.mark.parametrize(
    "code",
    [
        "from torch._C import _current_graph_task_id",
        "from torch._guards import CompileContext",
        "from torch import _guards",
        "import torch._dynamo",
        "import torch\nfind = torch._C.anything",
        "def f(x):\n    return x._backward_hooks",
        "def f(module):\n    return module._modules",
        "import torch\nfind = getattr(torch.Tensor, '_version')",
        "import torch\nimport sys\nfind = sys.modules.get('torch._dynamo.utils')",
        "def f(x):\n    return x._never_heard_of",
    ],
)
def test_such_a_use_would_be_seen(code):
    assert list(names_of_torch(nodes_of(code), {"_modules"}))
