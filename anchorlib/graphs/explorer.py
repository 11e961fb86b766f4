"""Writes graphs as a graph collection in JSON, which Google's Model Explorer opens.

Each run is a graph of its own, so that two runs can be shown side by side. Nodes are grouped by
stage ("forward", "backward" and others), then by module. Operations that differ from those of the
other run are red.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from anchorlib.graphs.graph import Graph, GraphTensor, Node

__all__ = ["explorer_text"]

_RED: Final = {"backgroundColor": "#ffb3b3", "borderColor": "#c62828", "textColor": "#5c0000"}


def explorer_text(graphs: Sequence[Graph], remark: str = "") -> str:
    """Return the JSON of a graph collection for Model Explorer that holds these graphs.

    remark: added to the collection's label, which names the runs; "" adds nothing.
    """
    label = " and ".join(graph.name for graph in graphs)
    return json.dumps(
        {"label": f"{label}: {remark}" if remark else label, "graphs": list(map(_graph, graphs))},
        separators=(",", ":"),
    )


def _graph(graph: Graph) -> dict[str, Any]:
    nodes = [_written(place, node) for place, node in enumerate(graph.nodes)]
    # Where a file holds two runs, each node's scope begins with the run's name already.
    return {"id": graph.name, "nodes": nodes}


def _written(place: int, node: Node) -> dict[str, Any]:
    written = {
        "id": str(place),
        "label": node.label,
        "namespace": "/".join(node.scope),
        "attrs": _pairs({"name": node.name, **node.attributes}),
        "incomingEdges": [
            {
                "sourceNodeId": str(one.maker),
                "sourceNodeOutputId": str(one.output),
                "targetNodeInputId": str(number),
            }
            for number, one in enumerate(node.inputs)
            if one.maker is not None
        ],
        "inputsMetadata": _tensors([one.tensor for one in node.inputs]),
        "outputsMetadata": _tensors(node.outputs),
    }
    return {**written, "style": _RED} if node.mark else written


def _tensors(tensors: Sequence[GraphTensor]) -> list[dict[str, Any]]:
    return [
        {
            "id": str(number),
            "attrs": _pairs({"tensor_name": tensor.argument, "tensor_shape": str(tensor)}),
        }
        for number, tensor in enumerate(tensors)
    ]


def _pairs(attributes: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": text} for key, text in attributes.items()]
