"""Reads a compiler's graph from the text that torch logs, where torch's own objects have moved.

The text is Python: a statement for each node, with dtype, shape and strides in its annotation.

    # File: train.py:12 in forward, code: return torch.tanh(self.fc1(x))
    tanh: "f32[3, 4][4, 1]cpu" = torch.ops.aten.tanh.default(addmm);  addmm = None

The text tells operations, values, producers and lines. It does not tell modules, numbers (`seq`),
or what an operation was before decomposition.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from functools import reduce
from typing import Any, Final, NamedTuple, TypeGuard

import torch

from anchorlib.capture.tracing.arguments import Arguments
from anchorlib.capture.tracing.code_places import is_torchs
from anchorlib.capture.tracing.compiler_graphs import (
    OUR_OPERATORS,
    CompilerGraph,
    GraphOp,
    NodeOutput,
)
from anchorlib.capture.tracing.graph_nodes import ITSELF, NodeFacts
from anchorlib.capture.tracing.schemas import OpFacts, facts_of
from anchorlib.operations import OperandForm
from anchorlib.torch_private import Overload

__all__ = ["TextGraph", "read_text"]

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CLASS: Final = re.compile(r"^.*\bclass .*\(torch\.nn\.Module\):\n", re.MULTILINE)
_FILE: Final = re.compile(r"^\s*# File: (.+):([0-9]+) in ")
_FORM: Final = re.compile(r"(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?")
_OPERATORS: Final = "torch.ops."
_DTYPES: Final = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "bool",
    "c64": "complex64",
    "c128": "complex128",
}


class TextGraph(NamedTuple):
    """A graph that was read from its text.

    signature: the names of all its nodes in order, with "output" as the last.
    """

    graph: CompilerGraph
    signature: tuple[str, ...]


def read_text(text: str) -> TextGraph | None:
    """Return the graph in a text that torch logs; None where the text holds no graph.

    Raises SyntaxError, ValueError or StopIteration for a graph in a form that is not known here.
    """
    title, has_graph, body = _split(_COLOUR.sub("", text))
    return _Reading(body, backward="Backward" in title).read() if has_graph else None


def _split(text: str) -> tuple[str, bool, str]:
    match = _CLASS.search(text)
    if match is None:
        return text, False, ""
    return text[: match.start()], True, f"class CompilerGraph:\n{text[match.end() :]}"


class _Reading:
    """Reads one text, statement by statement.

    `_forms` has "out", dtype, shape and strides of each of the graph's values, as far as the text
    states them. `_taken` has the value for which each variable stands: a variable that is assigned
    an indexed value stands for an output of the indexed node.

    body: the text from the graph's class on, as Python code. backward: whether the graph is that of
        a backward.
    """

    def __init__(self, body: str, *, backward: bool) -> None:
        [graph] = ast.parse(body).body
        self._forward = next(one for one in ast.walk(graph) if isinstance(one, ast.FunctionDef))
        self._lines = body.splitlines()
        self._backward = backward
        self._graph = CompilerGraph()
        self._names: list[str] = []
        self._taken: dict[str, NodeOutput] = {}
        self._forms: dict[NodeOutput, OperandForm] = {}

    def read(self) -> TextGraph:
        for argument in self._forward.args.args[1:]:
            self._graph.inputs.append(argument.arg)
            self._value(argument.arg, NodeOutput(argument.arg), argument.annotation)
        calls = list(self._calls())
        for name, call, line in calls:
            op = self._op(name, call, line)
            if not op.op.startswith(OUR_OPERATORS):
                self._graph.ops.append(op)
        return TextGraph(self._graph, (*self._names, "output"))

    def _calls(self) -> Iterator[tuple[str, ast.Call, int]]:
        """Yield name, call and line number in the text of each node that calls an operation.

        On the way, the values for which the variables stand are noted.
        """
        for statement in self._forward.body:
            target, value, form = _assigned(statement)
            if not target or (isinstance(value, ast.Constant) and value.value is None):
                continue  # a value that is not needed any more is set to None
            if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name):
                place = ast.literal_eval(value.slice)
                self._value(target, NodeOutput(value.value.id, place), form)
            else:
                self._value(target, NodeOutput(target), form)
                if isinstance(value, ast.Call):
                    yield target, value, statement.lineno

    def _value(self, name: str, output: NodeOutput, annotation: ast.expr | None) -> None:
        self._names.append(name)
        self._taken[name] = output
        match = _FORM.match(str(getattr(annotation, "value", "")))
        if match is not None:
            dtype, shape, stride = match.groups()
            sizes = (_sizes(shape), _sizes(stride or ""))
            self._forms[output] = ("out", _DTYPES.get(dtype, dtype), *sizes, False)

    def _op(self, name: str, call: ast.Call, line: int) -> GraphOp:
        called = ast.unparse(call.func)
        facts = _facts(called)
        names = () if facts is None else facts.arguments
        given = [(names[at] if at < len(names) else str(at), x) for at, x in enumerate(call.args)]
        given += [(one.arg or "", one.value) for one in call.keywords]
        others, operands = dict[str, Any](), list[tuple[str, NodeOutput]]()
        for argument, value in given:
            values = [(argument, value)]
            if isinstance(value, ast.List | ast.Tuple):
                values = [(f"{argument}[{at}]", one) for at, one in enumerate(value.elts)]
            of_nodes = [(one, self._taken[x.id]) for one, x in values if _is_in(x, self._taken)]
            operands += of_nodes
            if not of_nodes:
                others[argument] = _literal(value)
        present = {argument for argument, _ in given}
        defaults = [] if facts is None else [x for x in facts.defaults if x.name not in present]
        arguments = Arguments((), (), others, defaults)
        writes = () if facts is None else facts.writes
        outputs = [output for output in self._forms if output.node == name]
        return GraphOp(
            name,
            called.removeprefix(_OPERATORS) if facts is None else facts.name,
            NodeFacts(ITSELF, self._where(line), None, False, self._backward, False, ""),
            facts,
            tuple(self._form(argument, taken) for argument, taken in operands),
            tuple(taken for _, taken in operands),
            tuple(self._forms[one] for one in sorted(outputs, key=lambda one: one.place)),
            arguments.text,
            tuple(arguments.floats),
            tuple(at for at, (one, _) in enumerate(operands) if one.partition("[")[0] in writes),
            None,
        )

    def _form(self, argument: str, output: NodeOutput) -> OperandForm:
        _, *form = self._forms.get(output, ("", "", (), (), False))
        return (argument, *form)  # type: ignore[return-value]  # the rest of such a tuple

    def _where(self, line: int) -> str:
        """Return the line of user code, as "FILE:LINE", that the last comment above a line names.

        Return "" where the comment names no line, or a line of torch's.
        line: the number of a line of the text.
        """
        for text in reversed(self._lines[: line - 1]):
            match = _FILE.match(text)
            if match is not None:
                file, number = match.groups()
                return "" if is_torchs(file) else f"{file.rpartition('/')[2]}:{number}"
            if text.lstrip().startswith("#"):
                return ""
        return ""


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr | None, ast.expr | None]:
    """Return the variable that a statement assigns, the value, and the variable's annotation.

    For a statement that assigns no variable, these are "", None and None. The annotation is also
    None where the variable has none.
    """
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value, statement.annotation
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value, None
    return "", None, None


def _is_in(one: ast.expr, values: Container[str]) -> TypeGuard[ast.Name]:
    return isinstance(one, ast.Name) and one.id in values


def _facts(called: str) -> OpFacts | None:
    """Return facts from the schema of an operation; None where this torch has no such operation.

    called: the operation as the text calls it, such as "torch.ops.aten.tanh.default".
    """
    if not called.startswith(_OPERATORS):
        return None
    try:
        operator: Any = reduce(getattr, called.split(".")[1:], torch)
    except AttributeError:  # torch has no such operation in this process
        return None
    return facts_of(operator) if isinstance(operator, Overload) else None


def _literal(value: ast.expr) -> Any:
    """Return the value of an argument that is a literal; its text otherwise: "torch.float32"."""
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)


def _sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in a text such as "3, 4", with 0 for each symbolic size, such as "s0"."""
    parts = [one.strip() for one in text.split(",") if one.strip()]
    return tuple(int(one) if one.isdecimal() else 0 for one in parts)
