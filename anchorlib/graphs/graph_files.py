"""Writes graphs in the format that a file's suffix names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

from anchorlib.graphs.dot import dot_text
from anchorlib.graphs.explorer import explorer_text
from anchorlib.graphs.graph import Graph
from anchorlib.graphs.graph_def import graph_def_text
from anchorlib.graphs.onnx_model import onnx_bytes

__all__ = ["SUFFIXES", "write_graphs"]

_FORMATS: Final[Mapping[str, Callable[[Sequence[Graph], str], bytes | str]]] = {
    ".onnx": onnx_bytes,
    ".json": explorer_text,
    ".pbtxt": graph_def_text,
    ".dot": dot_text,
}

SUFFIXES: Final = tuple(_FORMATS)
"""The suffixes of files: ONNX, Model Explorer's JSON, TensorFlow's GraphDef, Graphviz."""


def write_graphs(graphs: Sequence[Graph], suffix: str, file: IO[bytes], remark: str = "") -> None:
    """Write the graphs into one file, in the format of `suffix`, which is one of `SUFFIXES`.

    remark: a line about all graphs, which is written into the file too; "" for none.
    """
    written = _FORMATS[suffix](graphs, remark)
    file.write(written if isinstance(written, bytes) else written.encode())
