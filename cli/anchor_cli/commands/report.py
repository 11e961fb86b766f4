"""`anchor report`: writes a self-contained HTML page about one run, or about several runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import JsonOption, StoreOption, complete, examples, without_slash
from anchor_cli.exits import ExitCode
from anchor_cli.progress import progress
from anchor_cli.terminal import document, note

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison
    from anchorlib.reading import Run

__all__ = ["EXAMPLES", "write_report"]

EXAMPLES = examples(
    "anchor report run1 -o run1.html",
    "anchor report eager compiled -o eager-compiled.html",
    "anchor report eager compiled --noise noise0 --noise noise1 -o report.html",
)


def _without_slashes(runs: list[str]) -> list[str]:
    return [without_slash(run) for run in runs]


def write_report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Runs by name in the store, path or URL; the others are compared with the first.",
            show_default=False,
            autocompletion=complete.run_names,
            callback=_without_slashes,
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write, FILE.html.")
    ],
    noise: Annotated[
        list[str] | None,
        typer.Option(
            "--noise",
            metavar="RUN",
            help="A rerun of the first run that shows how far rounding alone drifts; may be "
            "repeated.",
            autocompletion=complete.run_names,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Write one page that opens from disk: findings first, then pictures and tables.

    Where several runs are given, each is compared with the first. The page loads nothing from the
    network.
    """
    from anchor_cli.files import by_suffix, written_whole
    from anchorlib.reading import open_run
    from anchorlib.report import page

    # A wrong suffix is refused before anything is read.
    by_suffix(output, {".html": None, ".htm": None})
    opened = [open_run(run, store=store) for run in runs]
    with written_whole(output) as file:  # opened first: a wrong path shows before the long work
        compared = comparisons(opened, _without_slashes(noise or []), store)
        with progress("counting histograms") as tick:
            file.write(page(opened, compared, progress=tick).encode())
    note(f"wrote {output}")
    if as_json:
        document(_document_of(output, opened, compared))
    if hidden := [one for one in compared if one.incomplete]:
        note(f"incomplete: {'; '.join(remark for one in hidden for remark in one.notes)}")
        return ExitCode.INCOMPLETE
    return ExitCode.DONE


def comparisons(runs: Sequence[Run], noise: Sequence[str], store: str) -> list[Comparison]:
    """Compares each run but the first with the first, and returns the comparisons in this order.

    noise: reruns of the first run, by name, path or URL.
    store: the store that has the reruns that are given by name.
    """
    answers = []
    for other in runs[1:]:
        with progress(f"comparing {runs[0].name} and {other.name}") as tick:
            # Imported late: `anchor --help` must not load the diagnosis package.
            compare = import_module("anchorlib.diagnosis").compare
            answers.append(compare(runs[0], other, store=store, noise=noise, progress=tick))
    return answers


def _document_of(
    output: Path, runs: Sequence[Run], compared: Sequence[Comparison]
) -> dict[str, object]:
    verdicts = [
        {"run": one.b, "verdict": one.verdict, "sentence": one.sentence} for one in compared
    ]
    return {"file": str(output), "runs": [run.name for run in runs], "comparisons": verdicts}
