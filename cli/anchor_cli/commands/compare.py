"""`anchor compare`: says where two runs part, which operation did it, and whether it matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import (
    DaskOption,
    JsonOption,
    StoreOption,
    complete,
    examples,
    several_runs,
    spread_over,
    without_slash,
)
from anchor_cli.exits import ExitCode
from anchor_cli.progress import progress
from anchor_cli.terminal import counted, document, emit, note, this_screen

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison

__all__ = ["EXAMPLES", "compare_runs"]

EXAMPLES = examples(
    "anchor compare eager compiled",
    "anchor compare eager compiled --noise eager-noise1 --noise eager-noise2 --noise eager-noise3",
    "anchor compare a.zarr grpc://127.0.0.1:50051/b --tensor '*@grad' --csv pairs.csv",
    "anchor compare float64 eager compiled",
    "anchor compare eager compiled --github --junit compare.xml",
)


class FailOn(StrEnum):
    """The mildest verdict that gives exit code 1; suspect is milder than unexpected."""

    SUSPECT = "suspect"
    UNEXPECTED = "unexpected"


_FAILING = {
    FailOn.SUSPECT: ("suspect", "unexpected"),
    FailOn.UNEXPECTED: ("unexpected",),
}


def compare_runs(  # noqa: PLR0913  # one parameter for each option
    runs: Annotated[
        list[str],
        several_runs(
            "[REF] A B",
            "A is the run to compare with, B the run that may differ: names, paths or URLs. REF is "
            "a run that is nearer to the truth than either.",
        ),
    ],
    *,
    noise: Annotated[
        list[str] | None,
        typer.Option(
            "--noise",
            metavar="RUN",
            help="A rerun of A that shows how far rounding alone drifts, as `anchor noise` makes "
            "them; may be repeated.",
            autocompletion=complete.run_names,
        ),
    ] = None,
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor",
            "-t",
            metavar="SEL",
            help="Compare only these tensors, as '*@grad'; may be repeated.",
            autocompletion=complete.selectors,
        ),
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Names that differ between the runs: FILE.csv with a name of A and a name of B in "
            "each row, or FILE.json with an object.",
        ),
    ] = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Compute the first origins again from stored values: says which formula each run "
            "computed, and which run is nearer to the truth.",
        ),
    ] = False,
    ops: Annotated[
        bool | None,
        typer.Option(
            "--ops/--no-ops",
            help="Compare, or do not compare, the operations of the steps that both runs traced. "
            "Default: compare them where both runs traced any.",
            show_default=False,
        ),
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="The mildest verdict that gives exit code 1.")
    ] = FailOn.SUSPECT,
    csv: Annotated[
        str | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write one row for each matched record, in A's order of execution; - is stdout.",
        ),
    ] = None,
    jsonl: Annotated[
        str | None,
        typer.Option(
            "--jsonl",
            metavar="FILE",
            help="Write the rows of --csv as JSON lines, and a summary as the last line; - is "
            "stdout.",
        ),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write one self-contained HTML page."),
    ] = None,
    junit: Annotated[
        str | None,
        typer.Option(
            "--junit",
            metavar="FILE",
            help="Write JUnit XML for CI: the verdict and each tensor as a test case; - is stdout.",
        ),
    ] = None,
    github: Annotated[
        bool,
        typer.Option(
            "--github",
            help="Print annotations for GitHub Actions, and write the summary of the step.",
        ),
    ] = False,
    dask: DaskOption = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Find where two runs part, which operation did it, and whether it matters.

    Records are paired by identity and compared bit by bit. A record that differs although all
    records that it was computed from are equal is an origin. With --noise, later differences are
    judged by how far reruns of A drift by rounding alone.

    With a third run before the two (REF: the same training in float64, or on the CPU) a table shows
    for each origin which of A and B is nearer to REF. The verdict is that of A against B all the
    same.

    Exit code 0 for identical and expected, 1 for unexpected and suspect, 2 where there is nothing
    to compare, 3 where a run died, ended early or lost records that may hide a difference.
    """
    from anchor_cli.comparisons import next_commands, read_names, report
    from anchorlib.diagnosis import compare

    files = {"--csv": csv, "--jsonl": jsonl, "--html": html, "--junit": junit}
    _one_stdout(files, json=as_json, github=github)
    reference, a, b = _three(runs)
    others = [without_slash(run) for run in noise or ()]
    with spread_over(dask) as over, progress(f"comparing {a} and {b}") as tick:
        comparison = compare(
            a,
            b,
            store=store,
            noise=others,
            reference=reference,
            tensors=tensor or "*",
            names=read_names(names),
            replay=replay,
            ops=ops,
            progress=tick,
            over=over,
            beforehand=_say_beforehand,
        )
    _write(comparison, csv=csv, jsonl=jsonl)
    if html is not None:
        _write_page(comparison, (a, b), store, html)
    if as_json:
        document(comparison.to_dict())
    reported = not as_json and "-" not in files.values()
    commands = next_commands(comparison, (a, b), store)
    if reported:
        _emit(report(comparison, commands, this_screen()), github=github)
    code = _exit(comparison, fail_on, reported=reported)
    _for_ci(comparison, code, commands, junit=junit, github=github)
    return code


def _say_beforehand(finding: str) -> None:
    note(f"by their digests {finding}; these are read now")


def _three(runs: Sequence[str]) -> tuple[str | None, str, str]:
    """Splits the run arguments into the reference (None where two are given), A and B.

    Raises OptionError unless two or three runs are given.
    """
    from anchorlib.errors import OptionError

    if len(runs) not in (2, 3):
        raise OptionError(
            f"{counted(len(runs), 'run')} given: compare takes two, as `anchor compare A B`, or a "
            "reference and two, as `anchor compare REF A B`"
        )
    *reference, a, b = runs
    return (reference[0] if reference else None), a, b


def _one_stdout(files: Mapping[str, str | None], *, json: bool, github: bool) -> None:
    """Raises OptionError where several options would write to stdout.

    files: the file that each option writes, "-" for stdout; None where the option is not given.
    """
    from anchorlib.errors import OptionError

    asked = [f"{option} -" for option, place in files.items() if place == "-"]
    asked += [option for option, on in (("--json", json), ("--github", github)) if on]
    if len(asked) > 1:
        raise OptionError(f"{' and '.join(asked)} both go to stdout: give one of them a file")


def _write(comparison: Comparison, *, csv: str | None, jsonl: str | None) -> None:
    from anchor_cli.comparisons import write_csv, write_jsonl
    from anchor_cli.files import written_text

    for place, write in ((csv, write_csv), (jsonl, write_jsonl)):
        if place is not None:
            with written_text(place) as file:
                write(comparison, file)


def _write_page(comparison: Comparison, runs: tuple[str, str], store: str, place: str) -> None:
    from anchor_cli.files import written_text
    from anchorlib.reading import open_run
    from anchorlib.report import page

    with progress("counting histograms") as tick:
        text = page([open_run(run, store) for run in runs], [comparison], progress=tick)
    with written_text(place) as file:
        file.write(text)


def _emit(lines: Sequence[str], *, github: bool) -> None:
    from anchor_cli.comparisons import guarded

    emit(guarded(lines) if github else lines)


def _for_ci(
    comparison: Comparison,
    code: ExitCode,
    commands: Sequence[str],
    *,
    junit: str | None,
    github: bool,
) -> None:
    """Writes the comparison for CI systems: JUnit XML, and output for GitHub Actions.

    code: the exit code of the command. commands: the commands that are suggested to the user next.
    junit: the file for the JUnit XML, "-" for stdout; None writes none.
    github: whether to print annotations, and to write the summary of the step.
    """
    from anchor_cli.comparisons import annotated, summarise, write_junit
    from anchor_cli.files import written_text

    if junit is not None:
        with written_text(junit) as file:
            write_junit(comparison, code, file)
    if github:
        emit(annotated(comparison, code))
        summarise(comparison, commands)


def _more(lines: Sequence[str]) -> str:
    return f", and {len(lines) - 1} more" if len(lines) > 1 else ""


def _exit(comparison: Comparison, fail_on: FailOn, *, reported: bool) -> ExitCode:
    """Returns the exit code for a comparison; prints damage and missing records on stderr.

    Where there was nothing to compare, and no report was printed, also prints the verdict's
    sentence on stderr.

    fail_on: the mildest verdict that gives exit code 1.
    reported: whether the report, which has the verdict's sentence, was printed on stdout.
    """
    if comparison.verdict == "incomparable":
        if not reported:
            note(f"nothing to compare: {comparison.sentence}")
        return ExitCode.USAGE
    if comparison.damaged:
        note(f"damaged: {comparison.damaged[0]}{_more(comparison.damaged)}")
        # A verdict of suspect or expected may be wrong: it was reached with damaged values.
        if comparison.verdict != "unexpected":
            return ExitCode.INCOMPLETE
    if comparison.verdict in _FAILING[fail_on]:
        return ExitCode.DIFFERENCE
    if comparison.incomplete or not comparison.complete:
        note(f"incomplete: {'; '.join(filter(None, (comparison.complete.why, *comparison.notes)))}")
        return ExitCode.INCOMPLETE
    return ExitCode.DONE
