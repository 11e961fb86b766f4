"""Runs the cells of a notebook as Jupyter would, without Jupyter: `python notebook_cells.py FILE`.

On stdout: a JSON list with an entry for each code cell, `{"text": …, "html": …}`. `text` is what
the cell printed, then how the value of its last line shows itself as text, where it has no HTML.
`html` is how that value shows itself in a notebook, else null. A cell that raises ends all of it
with its traceback.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["run_cells", "source"]


def source(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def run_cells(notebook: dict[str, Any]) -> list[dict[str, str | None]]:
    """What each code cell shows, in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_shown(source(cell), f"cell {number}", names) for number, cell in enumerate(cells, 1)]


def _shown(text: str, title: str, names: dict[str, Any]) -> dict[str, str | None]:
    tree = ast.parse(text, title)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, title, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), title, "eval"), names)
    shows = getattr(value, "_repr_html_", None)
    html: str | None = shows() if shows is not None else None
    plain = "" if value is None or html is not None else f"{value!r}\n"
    return {"text": printed.getvalue() + plain, "html": html}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_cells(json.loads(Path(sys.argv[1]).read_text("utf-8")))))
