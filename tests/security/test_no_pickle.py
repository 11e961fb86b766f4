"""No pickle: bytes from elsewhere are never made into objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("anchorlib", "server", "cli", "examples", "benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

BANNED = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
EXCEPTIONS: dict[str, str] = {
    # path: why. Nothing so far.
}


def faults(tree: ast.AST) -> Iterator[str]:
    """What in a module could unpickle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in BANNED)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in BANNED:
                yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from _call(node)


def _call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    given = {word.arg: word.value for word in node.keywords}
    if called in ("eval", "exec", "builtins.eval", "builtins.exec"):
        yield called
    if called.endswith(("torch.load", "jit.load")) and not _is(given.get("weights_only"), True):
        yield called
    pickles = given.get("allow_pickle")
    if pickles is not None and not _is(pickles, False):
        yield f"{called} with allow_pickle"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_module_can_unpickle():
    assert len(SOURCES) > 50
    found = {
        str(path.relative_to(ROOT)): list(faults(ast.parse(path.read_text(encoding="utf-8"))))
        for path in SOURCES
    }
    assert not {name: what for name, what in found.items() if what and name not in EXCEPTIONS}


def test_every_exception_is_still_one():
    for name in EXCEPTIONS:
        assert list(faults(ast.parse((ROOT / name).read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=False)",
        "np.load('x', allow_pickle=True)",
        "eval('1')",
    ],
)
def test_the_search_finds_what_it_is_for(source):
    assert list(faults(ast.parse(source)))
