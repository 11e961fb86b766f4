"""The notebooks of the documentation run, and are kept without what they showed."""

from __future__ import annotations

import json
import sys

import pytest

from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs").glob("guides/*.ipynb"))


@pytest.fixture
def extensions(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "extensions"))
    yield
    for name in ("notebooks", "notebook_cells"):
        sys.modules.pop(name, None)


def notebook(*cells):
    kinds = ({"cell_type": "code", "source": text.splitlines(keepends=True)} for text in cells)
    return {"cells": list(kinds)}


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_in_version_4_5_without_outputs(path):
    text = path.read_text(encoding="utf-8")
    kept = json.loads(text)
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert kept["metadata"]["kernelspec"]["name"] == "python3"
    assert len({cell["id"] for cell in kept["cells"]}) == len(kept["cells"])
    for cell in kept["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert text == f"{json.dumps(kept, indent=1, ensure_ascii=False)}\n"


def test_a_cell_shows_what_it_prints_and_the_value_of_its_last_line(extensions):
    from notebook_cells import run_cells

    class_of = "class A:\n    def _repr_html_(self):\n        return '<b>'\nprint('made')"
    outputs = run_cells(notebook(class_of, "a = A()\na", "[a, 1][1]", "a = None", "None"))
    assert [output["html"] for output in outputs] == [None, "<b>", None, None, None]
    assert [output["text"] for output in outputs] == ["made\n", "", "1\n", "", ""]


@pytest.mark.slow
def test_a_cell_that_raises_fails_the_build_with_its_traceback(extensions):
    from notebooks import run

    with pytest.raises(RuntimeError, match=r"cell 2(.|\n)*ZeroDivisionError"):
        run(notebook("x = 0", "1 / x"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_each_cell_of_a_notebook_runs(extensions, path):
    from notebooks import run

    shown = json.dumps(run(json.loads(path.read_text(encoding="utf-8"))))
    assert "UNEXPECTED" in shown
    assert "<iframe srcdoc=" in shown
