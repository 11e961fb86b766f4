"""`anchor graph`: traced operations as a file that a viewer of graphs opens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.exits import ExitCode
from anchor_cli.options import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.terminal import document, note
from anchor_cli.traced import (
    ModuleOption,
    StageOption,
    StepOption,
    chosen_steps,
    tell_gaps,
    traced_ops,
)
from anchor_cli.words import counted, steps_of

if TYPE_CHECKING:
    from anchorlib.graphs import Graph
    from anchorlib.operations import Op

__all__ = ["EXAMPLES", "draw_graph"]

EXAMPLES = examples(
    "anchor graph run1 -o run1.onnx",
    "anchor graph run1 --step -1 -o run1.pbtxt",
    "anchor graph run1 --module 'encoder.*' --stage backward --step 0 -o encoder.dot",
)


def draw_graph(  # noqa: PLR0913  # one parameter for each option
    run: RunArgument,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="FILE.onnx (netron), .json (Model Explorer), .pbtxt (TensorBoard) or .dot "
            "(Graphviz).",
        ),
    ],
    stage: StageOption = None,
    module: ModuleOption = None,
    step: StepOption = None,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank",
            metavar="N",
            min=0,
            help="The operations of this rank; else of the first.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Write traced operations as a graph that netron, TensorBoard or Graphviz opens.

    A node is an operation; an edge leads from the one that made a tensor to one that takes it.
    Names are paths of stage and modules, which viewers fold. Without --step the first traced step
    is drawn. Views are left out: edges lead to the operation that wrote the memory.
    """
    from anchor_cli.files import by_suffix, written_whole
    from anchorlib.graphs import SUFFIXES, graph_of, write_graphs
    from anchorlib.names import escape
    from anchorlib.reading import open_run

    by_suffix(output, dict.fromkeys(SUFFIXES))  # before anything is read
    opened = open_run(run, store=store)
    every = traced_ops(opened, rank)
    ops = _of_steps([op for op in every if op.rank == every[0].rank], step)
    graph = graph_of(_chosen(ops, stage, module), opened.name)
    tell_gaps(opened, every[0].rank)
    remark = _remark(graph, ops)
    with written_whole(output) as file:
        write_graphs([graph], output.suffix.lower(), file, remark)
    note(f"wrote {escape(str(output))}: {remark}")
    if as_json:
        document(_told(output, graph, ops))
    return ExitCode.DONE


def _of_steps(ops: Sequence[Op], step: str | None) -> list[Op]:
    """The operations of the steps that --step names, or of the first that was traced."""
    from anchorlib.errors import OptionError

    steps = range(ops[0].step, ops[0].step + 1) if step is None else chosen_steps(step, ops)
    found = [op for op in ops if op.step in steps]
    if not found:
        traced = steps_of(ops[0].step, ops[-1].step)
        raise OptionError(f"no step that --step {step} names was traced; {traced} were")
    return found


def _chosen(ops: Sequence[Op], stage: str | None, module: str | None) -> list[Op]:
    """Those of a stage and of modules. Raises OptionError where there are none."""
    from anchorlib.errors import OptionError
    from anchorlib.operations import select_ops

    found = select_ops(ops, stage, module)
    if not found:
        raise OptionError("no operation traced there is of that stage and module; see `anchor ops`")
    return found


def _remark(graph: Graph, ops: Sequence[Op]) -> str:
    """What the file holds, and what not, in one line."""
    where = steps_of(ops[0].step, ops[-1].step)
    text = (
        f"{counted(len(graph.nodes), 'operation')} of {where} of {graph.name}, rank {ops[0].rank}"
    )
    if graph.views:
        text += f", without {counted(graph.views, 'view')}"
    if graph.left_out:
        text += (
            f"; {counted(graph.left_out, 'operation')} left out, for a file holds "
            f"{len(graph.nodes):,}: narrow it with --stage, --module or --step"
        )
    return text


def _told(output: Path, graph: Graph, ops: Sequence[Op]) -> dict[str, Any]:
    return {
        "file": str(output),
        "run": graph.name,
        "rank": ops[0].rank,
        "steps": sorted({op.step for op in ops}),
        "operations": len(graph.nodes),
        "edges": len(graph.edges),
        "views": graph.views,
        "left_out": graph.left_out,
    }
