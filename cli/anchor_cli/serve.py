"""`anchor serve`: the collector, until it is told to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.exits import ExitCode
from anchor_cli.options import JsonOption, examples
from anchor_cli.terminal import document, emit, note

if TYPE_CHECKING:
    from anchor_server import Collector, ServerTLS

__all__ = ["EXAMPLES", "run_collector"]

EXAMPLES = examples(
    "anchor serve --store anchors",
    "anchor serve --bind 127.0.0.1:0 --json",
    "anchor serve --bind 0.0.0.0:50051 --token-file token --tls-cert c.pem --tls-key k.pem",
)

_GRACE = 30.0  # seconds that streams have to end once a signal came


def run_collector(  # noqa: PLR0913  # one parameter for each option
    *,
    store: Annotated[
        str,
        typer.Option(
            "--store", envvar="ANCHOR_STORE", metavar="DIR", help="The directory runs go to."
        ),
    ] = "anchors",
    bind: Annotated[
        str, typer.Option("--bind", metavar="HOST:PORT", help="Where to listen; port 0 picks one.")
    ] = "127.0.0.1:50051",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="F",
            help="Holds the token that clients must show.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="F", help="Certificate, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="F", help="Its private key, PEM.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="F", help="Clients need a certificate signed by it."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without protection.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Collect what training processes send, into a directory.

    Prints one line when it is ready. SIGTERM and Ctrl-C write what has arrived, then end it.
    """
    tls = _tls(tls_cert, tls_key, client_ca)
    token = _token(token_file)
    collector = _listening(_directory(store), bind, tls=tls, token=token, insecure=insecure)
    if collector is None:
        return ExitCode.USAGE
    stop = _on_signals()
    try:
        collector.start()
        _say_ready(collector, as_json=as_json)
        stop.wait()
    finally:
        collector.stop(_GRACE)
    return ExitCode.DONE


def _listening(store: Path, bind: str, **settings: Any) -> Collector | None:
    """A collector that has its port; None where it cannot have it, which was then said."""
    from anchor_server import Collector
    from anchorlib.errors import CollectorError

    try:
        return Collector(store, bind, **settings)
    except CollectorError as error:
        # A port in use is a wrong --bind, not a collector that could not be reached.
        note(str(error))
        return None


def _directory(store: str) -> Path:
    from anchorlib.errors import OptionError

    if "://" in store:
        raise OptionError(f"serve writes into a directory, not into {store}; give --store DIR")
    return Path(store)


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTLS | None:
    from anchor_server import ServerTLS
    from anchorlib.errors import OptionError

    if cert is not None and key is not None:
        return ServerTLS(cert, key, client_ca)
    if (cert, key, client_ca) != (None, None, None):
        raise OptionError("TLS needs both --tls-cert and --tls-key (and --client-ca beside them)")
    return None


def _token(file: Path | None) -> str | None:
    """What clients must show: of --token-file, ANCHOR_TOKEN or ANCHOR_TOKEN_FILE; never told."""
    from anchorlib.errors import OptionError

    if file is None:
        if token := os.environ.get("ANCHOR_TOKEN"):
            return token
        if not (named := os.environ.get("ANCHOR_TOKEN_FILE")):
            return None
        file = Path(named)
    try:
        shared = file.stat().st_mode & 0o077
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the token in {file}: {error}") from error
    if shared:
        raise OptionError(f"{file} can be read by others than its owner: chmod 600 {file}")
    if not token or not token.isascii() or not token.isprintable():
        raise OptionError(f"{file} holds no token: write one line of printable ASCII into it")
    return token


def _on_signals() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set; a second one ends the process at once."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:  # noqa: ARG001  # as signal calls it
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop


def _say_ready(collector: Collector, *, as_json: bool) -> None:
    if as_json:
        document({"address": collector.address, "store": str(collector.store)})
    else:
        emit(f"anchor: collecting on {collector.address} into {collector.store}")
    sys.stdout.flush()  # whoever started this waits for the line
