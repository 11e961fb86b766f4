"""The protobuf messages of ONNX and of TensorFlow's graphs, with the fields that we write.

Neither onnx nor tensorflow is needed: protobuf, which is installed for the collector's protocol,
encodes the messages. Names, numbers and types of the fields are those of onnx.proto and of
TensorFlow's graph.proto, so that programs for these formats read the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["message"]

_FIELDS: Final[Mapping[str, str]] = {
    "onnx.Model": "ir_version 1 int64, producer_name 2 string, doc_string 6 string, "
    "graph 7 onnx.Graph, opset_import 8 onnx.OperatorSet*",
    "onnx.OperatorSet": "domain 1 string, version 2 int64",
    "onnx.Graph": "node 1 onnx.Node*, name 2 string, doc_string 10 string, "
    "input 11 onnx.ValueInfo*, output 12 onnx.ValueInfo*, value_info 13 onnx.ValueInfo*",
    "onnx.Node": "input 1 string*, output 2 string*, name 3 string, op_type 4 string, "
    "attribute 5 onnx.Attribute*, domain 7 string",
    "onnx.Attribute": "name 1 string, s 4 bytes, type 20 int32",
    "onnx.ValueInfo": "name 1 string, type 2 onnx.Type",
    "onnx.Type": "tensor_type 1 onnx.TensorType",
    "onnx.TensorType": "elem_type 1 int32, shape 2 onnx.Shape",
    "onnx.Shape": "dim 1 onnx.Dimension*",
    "onnx.Dimension": "dim_value 1 int64",
    "graph.Graph": "node 1 graph.Node*, versions 4 graph.Versions",
    "graph.Versions": "producer 1 int32",
    "graph.Node": "name 1 string, op 2 string, input 3 string*, device 4 string, "
    "attr 5 graph.Attribute*",
    "graph.Attribute": "key 1 string, value 2 graph.Value",
    "graph.Value": "list 1 graph.List, s 2 bytes",
    "graph.List": "shape 7 graph.Shape*",
    "graph.Shape": "dim 2 graph.Dimension*",
    "graph.Dimension": "size 1 int64",
}
"""Field, number and type for each message; `*` marks a field that may have several values."""

_PACKAGE: Final = "anchorlib"


def message(kind: str, /, **fields: Any) -> Any:
    """Make a protobuf message.

    kind: a key of `_FIELDS`, such as "onnx.Node".
    fields: the values of its fields, by the fields' names.
    """
    return _class(kind)(**fields)


@cache
def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    """Return the protobuf types of all messages, in a descriptor pool of our own.

    protobuf's common pool would refuse them where onnx or tensorboard is loaded too: these register
    their own descriptors there.
    """
    pool = descriptor_pool.DescriptorPool()
    for package in ("onnx", "graph"):
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{package}.proto", package=f"{_PACKAGE}.{package}", syntax="proto2"
        )
        for name, fields in _FIELDS.items():
            owner, _, kind = name.partition(".")
            if owner == package:
                _describe(file.message_type.add(name=kind), fields)
        pool.Add(file)
    return pool


def _describe(kind: Any, fields: str) -> None:
    of = descriptor_pb2.FieldDescriptorProto
    for one in fields.split(", "):
        name, number, typed = one.split()
        several, typed = typed.endswith("*"), typed.removesuffix("*")
        field = kind.field.add(name=name, number=int(number))
        field.label = of.LABEL_REPEATED if several else of.LABEL_OPTIONAL
        if "." in typed:
            field.type, field.type_name = of.TYPE_MESSAGE, f".{_PACKAGE}.{typed}"
        else:
            field.type = of.Type.Value(f"TYPE_{typed.upper()}")
