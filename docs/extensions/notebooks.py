"""Notebooks as pages: their Markdown as it is, their code, and what each cell shows when it is run.

They are kept without outputs and run while the pages are built, in a process and an empty folder of
their own, so that a page cannot show what the code does not do. Nothing of Jupyter is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from notebook_cells import source

RUNNER = Path(__file__).with_name("notebook_cells.py")
FENCE = "~" * 20
LIMIT = 300


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown that says the same."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the JSON of a notebook."""
        super().parse(markdown(json.loads(inputstring)), document)


def markdown(notebook: dict[str, Any]) -> str:
    """The notebook with what its cells show."""
    outputs = iter(run(notebook))
    parts: list[str] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            parts += [_fenced("python", source(cell)), *_shown(next(outputs))]
        else:
            parts.append(source(cell))
    return "\n\n".join(parts)


def run(notebook: dict[str, Any]) -> list[dict[str, str | None]]:
    """What each code cell shows. Raises RuntimeError with the traceback of a cell that raises."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANCHOR_")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "notebook.json"
        file.write_text(json.dumps(notebook), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, RUNNER, file],
            cwd=folder,
            env={**kept, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"a cell of a notebook failed:\n{done.stderr}")
    outputs: list[dict[str, str | None]] = json.loads(done.stdout)
    return outputs


def _shown(output: dict[str, str | None]) -> Iterator[str]:
    if output["text"]:
        yield _fenced("text", output["text"])
    if output["html"]:
        yield _fenced("{raw} html", output["html"])


def _fenced(language: str, text: str) -> str:
    return f"{FENCE}{language}\n{text.rstrip()}\n{FENCE}"


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
