"""Traced operations as graphs, and graphs as files that viewers open.

    Op ─graph_of─▶ Graph ─write_graphs─▶ .onnx .json .pbtxt .dot
                     ▲
    OpAlignment ─marks_of─ how another run differs

A node is an operation; an edge leads from the operation that made a tensor to an operation that
has the tensor as an input. Names are paths: the stage (forward, backward, optimizer and so on),
then module by module, so that viewers fold them. Where two runs are compared, `marks_of` makes a
text for each operation that differs, which the graph shows at the operation's node.
"""

from anchorlib.graphs.graph import Graph, graph_of
from anchorlib.graphs.graph_files import SUFFIXES, write_graphs
from anchorlib.graphs.marking import Marks, marks_of
from anchorlib.graphs.neighbours import ops_around

__all__ = [
    "SUFFIXES",
    "Graph",
    "Marks",
    "graph_of",
    "marks_of",
    "ops_around",
    "write_graphs",
]
