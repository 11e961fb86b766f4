"""`anchor serve`: runs a collector until a signal ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anchor_cli.arguments import JsonOption, examples, not_empty
from anchor_cli.collector import ARCHIVE_AFTER, CollectorPlan, Signals, collect, say_problems

__all__ = ["EXAMPLES", "run_collector"]

EXAMPLES = examples(
    "anchor serve --store anchors",
    "anchor serve --bind 0.0.0.0:50051 --self-signed",
    "anchor serve --bind 0.0.0.0:50051 --token-file token --tls-cert c.pem --tls-key k.pem",
    "anchor serve --access access.toml --tls-cert c.pem --tls-key k.pem --bind 0.0.0.0:50051",
    "anchor serve --metrics-bind 127.0.0.1:9464 --log-format json --durability power",
    "anchor serve --archive s3://bucket/prefix --keep-local 500GB",
    "anchor serve --max-streams 64 --idle-timeout 10m --max-run-size 500GB",
    "anchor serve --access access.toml --tls-cert c.pem --tls-key k.pem --check",
    "anchor serve --read-only",
)


def run_collector(  # noqa: PLR0913  # one parameter for each option
    *,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="ANCHOR_STORE",
            metavar="DIR",
            help="The directory that runs are written into.",
            callback=not_empty,
        ),
    ] = "anchors",
    bind: Annotated[
        str,
        typer.Option(
            "--bind",
            metavar="HOST:PORT",
            help="The address to listen on; port 0 picks a free port.",
        ),
    ] = "127.0.0.1:50051",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="F",
            help="The file with the token that clients must show.",
        ),
    ] = None,
    access: Annotated[
        Path | None,
        typer.Option(
            "--access",
            metavar="F",
            help="The file that lists tokens with the rights of each, in place of one token with "
            "all rights; `anchor token` writes it. It is read again when it changes.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="F", help="The collector's certificate, in PEM form."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="F", help="The certificate's private key, in PEM form."),
    ] = None,
    self_signed: Annotated[
        bool,
        typer.Option(
            "--self-signed",
            help="Make a certificate and a token, and show the variables that clients have to set.",
        ),
    ] = False,
    client_ca: Annotated[
        Path | None,
        typer.Option(
            "--client-ca",
            metavar="F",
            help="Demand from clients a certificate that this authority (PEM) signed.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines connect without protection.")
    ] = False,
    durability: Annotated[
        Literal["process", "power"],
        typer.Option(
            "--durability",
            help="What acknowledged records survive: kill -9 of the collector (process), or also "
            "power loss (power).",
        ),
    ] = "process",
    max_streams: Annotated[
        int,
        typer.Option(
            "--max-streams", metavar="N", min=1, help="The most training processes at once."
        ),
    ] = 512,
    idle_timeout: Annotated[
        str,
        typer.Option(
            "--idle-timeout",
            metavar="TIME",
            help="End a stream that sends nothing for so long; its trainer connects again when it "
            "has records to send.",
        ),
    ] = "30m",
    max_run_size: Annotated[
        str | None,
        typer.Option(
            "--max-run-size",
            metavar="SIZE",
            help="The most bytes of a run on disk, all ranks together; beyond it values are left "
            "out and summaries kept.",
        ),
    ] = None,
    max_run_inodes: Annotated[
        int | None,
        typer.Option(
            "--max-run-inodes",
            metavar="N",
            min=1,
            help="The most files and folders of a run; beyond it records wait in the trainers' "
            "spools.",
        ),
    ] = None,
    max_runs: Annotated[
        int | None,
        typer.Option(
            "--max-runs",
            metavar="N",
            min=1,
            help="The most runs in the store; a further run waits in its trainers' spools.",
        ),
    ] = None,
    max_rate: Annotated[
        str | None,
        typer.Option(
            "--max-rate",
            metavar="SIZE",
            help="The most bytes a second from all trainers together, as 50MB; records beyond it "
            "wait in the trainers' spools.",
        ),
    ] = None,
    metrics_bind: Annotated[
        str | None,
        typer.Option(
            "--metrics-bind",
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at /metrics on this address.",
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="URL|DIR",
            help="Archive closed runs there: s3://, gs:// or az://BUCKET/PREFIX, or a directory.",
            callback=not_empty,
        ),
    ] = None,
    archive_after: Annotated[
        str,
        typer.Option(
            "--archive-after",
            metavar="TIME",
            help="With --archive: how long after a run's last record it is archived.",
        ),
    ] = ARCHIVE_AFTER,
    keep_local: Annotated[
        str,
        typer.Option(
            "--keep-local",
            metavar="all|none|SIZE|AGE",
            help="With --archive: which archived runs stay on this disk; the others are read from "
            "the archive.",
        ),
    ] = "all",
    without_conditions: Annotated[
        bool,
        typer.Option(
            "--without-conditional-writes",
            help="With --archive: also use an object store that cannot refuse to overwrite.",
        ),
    ] = False,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(
            "--log-format", help="Log every stream on stderr; without it only problems are."
        ),
    ] = None,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="Serve readers and change nothing on disk; trainers keep their records in their "
            "spools, and connect again later.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Say what would prevent the start, and start nothing."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Collect the records that training processes send, into a directory.

    Prints one line when it is ready. SIGTERM or Ctrl-C ends the collector: it writes the records
    that have arrived and answers readers for at most 30 seconds. A second signal ends it at once.
    SIGHUP makes it read the certificates, the token and the access file again. With --check the
    exit code is 0 where the collector would start, and 2, with a line for each problem, where it
    would not.
    """
    from anchor_server import allow_files, log_to_stderr

    plan = CollectorPlan(
        store=store,
        bind=bind,
        token_file=token_file,
        access=access,
        tls_cert=tls_cert,
        tls_key=tls_key,
        self_signed=self_signed,
        client_ca=client_ca,
        insecure=insecure,
        power=durability == "power",
        read_only=read_only,
        max_streams=max_streams,
        idle_timeout=idle_timeout,
        max_run_size=max_run_size,
        max_run_inodes=max_run_inodes,
        max_runs=max_runs,
        max_rate=max_rate,
        metrics_bind=metrics_bind,
        archive=archive,
        archive_after=archive_after,
        keep_local=keep_local,
        without_conditions=without_conditions,
    )
    log_to_stderr(log_format)
    if check:
        allow_files(max_streams)
        return say_problems(plan, as_json=as_json)
    with Signals() as signals:
        return collect(plan, signals, as_json=as_json)
