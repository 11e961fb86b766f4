"""Graphs as text of TensorFlow's GraphDef, which TensorBoard and netron open.

TensorFlow allows few characters in node names; any other than a letter, a digit, "_", ".", "-", "/"
and the backslash is written as an escape. TensorBoard colours nodes by device, so the device says
whether an operation differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import text_format

from anchorlib.graphs.graph import Graph, GraphTensor, Node
from anchorlib.graphs.messages import message

__all__ = ["graph_def_text"]

_OTHER: Final = re.compile(r"[^A-Za-z0-9_./\\-]")
_PRODUCER: Final = 22  # from this version of GraphDef on, readers infer shapes


def graph_def_text(graphs: Sequence[Graph], remark: str = "") -> str:
    """Return the text of a GraphDef that holds these graphs side by side.

    remark: a comment for the first line; none if empty.
    """
    whole = message("graph.Graph", versions=message("graph.Versions", producer=_PRODUCER))
    for graph in graphs:
        names = [_name(node) for node in graph.nodes]
        whole.node.extend(_written(node, names, against=graph.against) for node in graph.nodes)
    head = f"# {remark}\n" if remark else ""
    return head + text_format.MessageToString(whole, as_utf8=False)


def _name(node: Node) -> str:
    name = _OTHER.sub(lambda found: _escaped(found[0]), node.name)
    # A name may not begin with "_", "-" or "/", nor with "^", which marks a control input.
    return name if name[:1].isalnum() or name.startswith(".") else f".{name}"


def _escaped(letter: str) -> str:
    return f"\\x{ord(letter):02x}" if ord(letter) < 256 else f"\\u{ord(letter):04x}"


def _written(node: Node, names: Sequence[str], *, against: bool) -> Any:
    attributes = [
        message("graph.Attribute", key=key, value=message("graph.Value", s=text.encode()))
        for key, text in node.attributes.items()
    ]
    shapes = message("graph.List", shape=[_shape(one) for one in node.outputs])
    attributes.append(
        message("graph.Attribute", key="_output_shapes", value=message("graph.Value", list=shapes))
    )
    return message(
        "graph.Node",
        name=_name(node),
        op=node.label,
        input=[
            names[one.maker] + (f":{one.output}" if one.output else "")
            for one in node.inputs
            if one.maker is not None
        ],
        device=("/device:DIFFERS:0" if node.mark else "/device:SAME:0") if against else "",
        attr=attributes,
    )


def _shape(tensor: GraphTensor) -> Any:
    dims = [message("graph.Dimension", size=size) for size in tensor.shape]
    return message("graph.Shape", dim=dims)
