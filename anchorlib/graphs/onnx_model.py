"""Writes graphs as one ONNX model, which netron opens.

Operations keep their own names, in the domain of their library ("aten"): the model is a drawing
that nothing can run. Every further fact about an operation is an attribute, as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from anchorlib.graphs.graph import Graph, GraphTensor, Node
from anchorlib.graphs.messages import message

__all__ = ["onnx_bytes"]

_IR_VERSION: Final = 10  # of onnx 1.16, which today's readers know
_OPSET: Final = 18
_STRING: Final = 3
_UNDEFINED: Final = 0

_ELEMENTS: Final = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15,
    "bfloat16": 16, "float8_e4m3fn": 17, "float8_e4m3fnuz": 18, "float8_e5m2": 19,
    "float8_e5m2fnuz": 20, "uint4": 21, "int4": 22, "float8_e8m0fnu": 24,
}  # fmt: skip
"""The number that onnx.proto (TensorProto.DataType) gives to each element type."""


def onnx_bytes(graphs: Sequence[Graph], remark: str = "") -> bytes:
    """Return a serialised ONNX model with these graphs side by side.

    remark: the model's description (`doc_string`), which viewers show.
    """
    name = " and ".join(graph.name for graph in graphs)
    whole = message("onnx.Graph", name=name, doc_string=remark)
    for graph in graphs:
        _add(whole, graph)
    domains = sorted({node.domain for graph in graphs for node in graph.nodes})
    opsets = [message("onnx.OperatorSet", domain="", version=_OPSET)]
    opsets += [message("onnx.OperatorSet", domain=domain, version=1) for domain in domains]
    model = message(
        "onnx.Model",
        ir_version=_IR_VERSION,
        producer_name="anchorlib",
        doc_string=remark,
        graph=whole,
        opset_import=opsets,
    )
    return bytes(model.SerializeToString(deterministic=True))


def _add(whole: Any, graph: Graph) -> None:
    names: dict[int, str] = {}
    taken = {(one.maker, one.output) for node in graph.nodes for one in node.inputs}
    for place, node in enumerate(graph.nodes):
        inputs = []
        for number, one in enumerate(node.inputs):
            if one.maker is not None:
                inputs.append(_value(graph.nodes[one.maker], one.output))
                continue
            assert one.outside is not None
            if one.outside not in names:
                names[one.outside] = f"{node.name}<{number}"
                whole.input.append(_info(names[one.outside], one.tensor))
            inputs.append(names[one.outside])
        whole.node.append(_written(node, inputs))
        for number, made in enumerate(node.outputs):
            to = whole.value_info if (place, number) in taken else whole.output
            to.append(_info(_value(node, number), made))


def _written(node: Node, inputs: list[str]) -> Any:
    return message(
        "onnx.Node",
        input=inputs,
        output=[_value(node, number) for number in range(len(node.outputs))],
        name=node.name,
        op_type=node.label,
        domain=node.domain,
        attribute=[
            message("onnx.Attribute", name=name, s=text.encode(), type=_STRING)
            for name, text in node.attributes.items()
        ],
    )


def _value(node: Node, output: int) -> str:
    return f"{node.name}:{output}"


def _info(name: str, tensor: GraphTensor) -> Any:
    dims = [message("onnx.Dimension", dim_value=size) for size in tensor.shape]
    element = _ELEMENTS.get(tensor.dtype, _UNDEFINED)
    typed = message("onnx.TensorType", elem_type=element, shape=message("onnx.Shape", dim=dims))
    return message("onnx.ValueInfo", name=name, type=message("onnx.Type", tensor_type=typed))
