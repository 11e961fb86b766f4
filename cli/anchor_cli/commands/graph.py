"""`anchor graph`: writes traced operations to a file that a graph viewer opens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import (
    JsonOption,
    ModuleOption,
    RunArgument,
    StageOption,
    StepOption,
    StoreOption,
    chosen_steps,
    complete,
    examples,
    not_empty,
    tell_gaps,
    traced_ops,
    without_slash,
)
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import counted, document, note, steps_of

if TYPE_CHECKING:
    from anchorlib import Run
    from anchorlib.graphs import Graph, Marks
    from anchorlib.operations import Op

__all__ = ["EXAMPLES", "draw_graph"]

EXAMPLES = examples(
    "anchor graph run1 -o run1.onnx",
    "anchor graph eager --against compiled -o eager-compiled.json",
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
            help="The file to write: .onnx (netron), .json (Model Explorer), .pbtxt (TensorBoard) "
            "or .dot (Graphviz).",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="Draw this run beside RUN, and mark in both the operations that differ.",
            show_default=False,
            autocompletion=complete.run_names,
            callback=not_empty,
        ),
    ] = None,
    stage: StageOption = None,
    module: ModuleOption = None,
    step: StepOption = None,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank",
            metavar="N",
            min=0,
            help="Draw the operations of this rank. Default: the first traced rank.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Write traced operations as a graph that netron, TensorBoard or Graphviz opens.

    A node is an operation; an edge leads from the operation that made a tensor to an operation that
    takes it. Names are paths of stage and modules, which viewers fold. Without --step the first
    traced step is drawn. Views are left out: an edge begins at the operation that wrote the memory.
    """
    from anchor_cli.files import by_suffix, written_whole
    from anchorlib.graphs import SUFFIXES, write_graphs
    from anchorlib.names import escape
    from anchorlib.reading import open_run

    by_suffix(output, dict.fromkeys(SUFFIXES))  # a wrong suffix is refused before anything is read
    runs = [open_run(run, store=store)]
    if against is not None:
        runs.append(open_run(without_slash(against), store=store))
    traced = _of_steps(_of_rank(runs, rank), step)
    graphs = _graphs(runs, traced, stage, module)
    for one, ops in zip(runs, traced, strict=True):
        tell_gaps(one, ops[0].rank)
    remark = "; ".join(map(_remark, graphs, traced))
    with written_whole(output) as file:
        write_graphs(graphs, output.suffix.lower(), file, remark)
    note(f"wrote {escape(str(output))}: {remark}")
    if as_json:
        described = [_document_of(*one) for one in zip(_names(runs), graphs, traced, strict=True)]
        document({"file": str(output), "runs": described})
    return ExitCode.DONE


def _of_rank(runs: Sequence[Run], rank: int | None) -> list[list[Op]]:
    """Returns for each run the traced operations of one rank.

    Raises OptionError where a run has no traced operation of that rank.

    rank: the rank; None means, for all runs, the first traced rank of the first run.
    """
    first = traced_ops(runs[0], rank)
    first = [op for op in first if op.rank == first[0].rank]
    return [first, *(traced_ops(run, first[0].rank) for run in runs[1:])]


def _of_steps(traced: Sequence[Sequence[Op]], step: str | None) -> list[list[Op]]:
    """Returns for each run the operations of the steps that `--step` names.

    Steps that were not traced in all runs are left out. Raises OptionError where no step is left.

    traced: the traced operations of each run.
    step: the option's value; None means the first step that was traced in all runs.
    """
    from anchorlib.errors import OptionError

    spans = " and ".join(steps_of(ops[0].step, ops[-1].step) for ops in traced)
    common = set.intersection(*({op.step for op in ops} for ops in traced))
    if not common:
        raise OptionError(f"no step was traced in both runs: there are {spans}")
    wanted = {min(common)} if step is None else common.intersection(chosen_steps(step, traced[0]))
    if not wanted:
        raise OptionError(f"--step {step} names no traced step; there are {spans}")
    return [[op for op in ops if op.step in wanted] for ops in traced]


def _graphs(
    runs: Sequence[Run], traced: Sequence[list[Op]], stage: str | None, module: str | None
) -> list[Graph]:
    """Returns a graph for each run, with its operations of one stage and of some modules.

    Where there are two runs, the operations that differ are marked. Raises OptionError where no run
    has an operation of that stage and those modules.

    traced: for each run, its operations of the chosen rank and steps.
    stage, module: the values of --stage and --module; None selects all.
    """
    from anchorlib.errors import OptionError
    from anchorlib.graphs import graph_of
    from anchorlib.operations import select_ops

    names = _names(runs)
    marks = _marks(runs, traced, names)
    chosen = [select_ops(ops, stage, module) for ops in traced]
    if not any(chosen):
        raise OptionError("no traced operation is of that stage and module; see `anchor ops`")
    scopes = [[name] for name in names] if len(runs) > 1 else [[]]
    return [
        graph_of(ops, name, marks=own, scope=scope)
        for ops, name, own, scope in zip(chosen, names, marks, scopes, strict=True)
    ]


def _marks(
    runs: Sequence[Run], traced: Sequence[list[Op]], names: Sequence[str]
) -> Sequence[Marks | None]:
    from anchorlib.graphs import marks_of
    from anchorlib.operations import align_ops

    if len(traced) == 1:
        return [None]
    partial = any(run.op_gaps() for run in runs)
    alignment = align_ops(traced[0], traced[1], partial=partial)
    if alignment is None:  # the runs share no operation that computes anything
        return [{}, {}]
    return marks_of(alignment, names[0], names[1])


def _names(runs: Sequence[Run]) -> list[str]:
    """Returns the names by which the written file calls the runs.

    Where two runs have the same name, A and B are appended.
    """
    names = [run.name for run in runs]
    if len({*names}) == len(names):
        return names
    return [f"{name} {side}" for name, side in zip(names, "AB", strict=False)]


def _remark(graph: Graph, ops: Sequence[Op]) -> str:
    """Returns a sentence that says how many operations of a run are drawn, and what is left out.

    ops: the operations of the chosen steps.
    """
    where = steps_of(ops[0].step, ops[-1].step)
    drawn = counted(len(graph.nodes), "operation")
    text = f"{drawn} of {where} of {graph.name}, rank {ops[0].rank}"
    if graph.against:
        text += f", of which {graph.marked:,} differ"
    if graph.views:
        text += f", without {counted(graph.views, 'view')}"
    if graph.left_out:
        text += (
            f", and without {graph.left_out:,} more, because a file holds no more operations of a "
            "run: narrow it with --stage, --module or --step"
        )
    return text


def _document_of(run: str, graph: Graph, ops: Sequence[Op]) -> dict[str, Any]:
    return {
        "run": run,
        "rank": ops[0].rank,
        "steps": sorted({op.step for op in ops}),
        "operations": len(graph.nodes),
        "edges": len(graph.edges),
        "views": graph.views,
        "left_out": graph.left_out,
        "differing": graph.marked if graph.against else None,
    }
