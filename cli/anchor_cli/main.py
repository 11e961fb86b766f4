"""The app `anchor`: registers its commands, and turns errors into a line and an exit code.

Only this module knows what each error means on the command line:

AnchorError      2, DamagedError 3, CollectorError and ClusterError 4   one line on stderr
wrong usage      2                         one line that names the help
OSError          2                         one line: the reason, and the file where it is known
interrupted      130                       nothing
closed pipe      0                         nothing: `anchor names run1 | head` ends quietly
anything else    70                        a defect; ANCHOR_DEBUG=1 shows its traceback
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from anchor_cli.arguments import asked_by_bash, examples
from anchor_cli.commands import (
    archive,
    compare,
    doctor,
    export,
    gc,
    graft,
    graph,
    hist,
    importing,
    mv,
    names,
    noise,
    ops,
    pull,
    push,
    ranks,
    repair,
    report,
    rm,
    run,
    runs,
    serve,
    stats,
    status,
    tail,
    token,
    ui,
    verify,
)
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import emit, note
from anchorlib.errors import AnchorError, ClusterError, CollectorError, DamagedError

__all__ = ["app", "main"]

app = typer.Typer(
    name="anchor",
    # Plain help in a terminal and in a pipe alike; no locals (they may hold tokens) in tracebacks.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "anchor names run1",
        "anchor hist run1 --tensor fc2.bias",
        "anchor hist run1 --store grpc://127.0.0.1:50051 --tensor 'fc*@grad' -o gradients.png",
    ),
)
app.command("serve", epilog=serve.EXAMPLES)(serve.run_collector)
app.command("token", epilog=token.EXAMPLES)(token.make_token)
app.command("run", epilog=run.EXAMPLES, context_settings=run.SETTINGS)(run.run_command)
app.command("runs", epilog=runs.EXAMPLES)(runs.show_runs)
app.command("status", epilog=status.EXAMPLES)(status.show_status)
app.command("names", epilog=names.EXAMPLES)(names.show_names)
app.command("pull", epilog=pull.EXAMPLES)(pull.pull_tensor)
app.command("hist", epilog=hist.EXAMPLES)(hist.show_histogram)
app.command("stats", epilog=stats.EXAMPLES)(stats.show_stats)
app.command("ops", epilog=ops.EXAMPLES)(ops.show_ops)
app.command("graph", epilog=graph.EXAMPLES)(graph.draw_graph)
app.command("tail", epilog=tail.EXAMPLES)(tail.tail_run)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare_runs)
app.command("ranks", epilog=ranks.EXAMPLES)(ranks.show_ranks)
app.command("report", epilog=report.EXAMPLES)(report.write_report)
app.command("ui", epilog=ui.EXAMPLES)(ui.serve_page)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify_run)
app.command("noise", epilog=noise.EXAMPLES)(noise.make_noise)
app.command("graft", epilog=graft.EXAMPLES)(graft.make_graft)
app.command("export", epilog=export.EXAMPLES)(export.export_run)
app.command("import", epilog=importing.EXAMPLES)(importing.import_dumps)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.examine)
app.command("rm", epilog=rm.EXAMPLES)(rm.remove_runs)
app.command("mv", epilog=mv.EXAMPLES)(mv.rename)
app.command("gc", epilog=gc.EXAMPLES)(gc.collect)
app.command("archive", epilog=archive.EXAMPLES)(archive.archive)
app.command("repair", epilog=repair.EXAMPLES)(repair.repair_run)
app.command("push", epilog=push.EXAMPLES)(push.push_run)


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> int:
    """See the tensors of a PyTorch training run: what was recorded, how it is distributed."""
    if version:
        from anchorlib import __version__

        emit(f"anchor {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(ExitCode.USAGE)
    return ExitCode.DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `anchor` with the given arguments, and returns the exit code.

    arguments: the words behind `anchor`; None takes those of this process's command line.
    """
    _prepare()
    try:
        with asked_by_bash(), _speaking():
            code = _answer(arguments)
        sys.stdout.flush()  # here a closed pipe is caught; at exit Python would report it
    except BrokenPipeError:
        _abandon_stdout()
        return ExitCode.DONE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except OSError as error:
        if _debugging():
            raise
        # A full disk behind stdout, or a file without the right to read it: no defect of ours.
        message = _trouble(error)
        _abandon_stdout()
        note(message)
        return ExitCode.USAGE
    return code


_CODES = (
    (CollectorError, ExitCode.COLLECTOR),
    (ClusterError, ExitCode.COLLECTOR),
    (DamagedError, ExitCode.INCOMPLETE),
)


def _answer(arguments: Sequence[str] | None) -> int:
    """Runs one command and returns its exit code; errors become one line on stderr.

    OSError (a full disk, a closed pipe) is not caught here, but in `main`. With ANCHOR_DEBUG=1
    unexpected errors are raised too.

    arguments: the words behind `anchor`; None takes those of this process's command line.
    """
    try:
        code = _command()(
            args=None if arguments is None else list(arguments),
            prog_name="anchor",
            standalone_mode=False,
        )
    except AnchorError as error:
        note(str(error))
        return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.USAGE)
    except typer.TyperException as error:
        note(_usage(error, sys.argv[1:] if arguments is None else arguments))
        return ExitCode.USAGE
    except OSError:
        raise
    except SystemExit as stop:
        # typer answers a closed pipe with exit code 1, which here would mean a difference.
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        raise
    except Exception as error:
        if _debugging():
            raise
        note(
            f"internal error: {type(error).__name__}: {error}; run again with ANCHOR_DEBUG=1 "
            "and report the traceback"
        )
        return ExitCode.DEFECT
    return code or ExitCode.DONE


@functools.cache
def _command() -> typer.core.TyperGroup:
    """Returns the click command that has all commands of `anchor` with their options.

    The result is cached, because typer takes a while to read all functions.
    """
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    return command


def _usage(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """Returns an error of usage as one line, which ends with the command that shows the help.

    Where the error does not know its command, such as after an option without a value, the first
    argument that is a command says whose help to name.

    arguments: the words behind `anchor`.
    """
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    named = [f"anchor {one}" for one in arguments if one in _command().commands]
    path = context.command_path if context is not None else next(iter(named), "anchor")
    message = message.replace("Value error, ", "").replace(". Did you mean", "; did you mean")
    see = " See" if message.endswith("?") else "; see"
    return f"{message[:1].lower()}{message[1:]}{see} `{path} --help`"


def _trouble(error: OSError) -> str:
    """Returns the line that tells the user about an OSError, with the name of the file.

    An error of writing, such as a full disk, that names no file is taken for an error of stdout;
    any other error that names no file gives the reason alone.
    """
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{reason}: {error.filename}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return reason
    name = "standard output"
    with contextlib.suppress(OSError, ValueError):
        file = Path(f"/dev/fd/{sys.stdout.fileno()}").readlink()
        name = str(file) if file.is_absolute() else name  # a pipe's is "pipe:[1234]"
    return f"cannot write {name}: {reason}"


def _debugging() -> bool:
    return os.environ.get("ANCHOR_DEBUG") == "1"


def _prepare() -> None:
    """Makes stdout and stderr accept any text, and silences gRPC's own messages."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors reach us as exceptions as well
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as in `anchor names run1 >&-`
            nothing = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # stays open
            setattr(sys, name, nothing)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name must not end a command


@contextlib.contextmanager
def _speaking() -> Iterator[None]:
    """A context in which anchorlib's log and Python warnings appear on stderr as `anchor: …`."""
    log, notes = logging.getLogger("anchorlib"), _Notes()
    log.addHandler(notes)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: note(f"warning: {message}")
            yield
    finally:
        log.removeHandler(notes)


class _Notes(logging.Handler):
    """A logging handler that prints what anchorlib logs as lines `anchor: …` on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage().removeprefix("anchorlib: "))


def _abandon_stdout() -> None:
    """Points stdout at /dev/null; otherwise Python would report the failed write again at exit."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
