"""`anchor ui`: serves the HTML page of runs to a browser on this machine, and keeps it fresh."""

from __future__ import annotations

import ipaddress
import socket
import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated, Final

import typer

from anchor_cli.arguments import JsonOption, StoreOption, complete, examples, without_slash
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import document, emit

if TYPE_CHECKING:
    from anchorlib.report import Source

__all__ = ["EXAMPLES", "serve_page"]

_PORT_DIGITS: Final = 5

EXAMPLES = examples(
    "anchor ui",
    "anchor ui run1",
    "anchor ui eager compiled --store grpc://127.0.0.1:50051 --bind 127.0.0.1:0",
)


def serve_page(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="The runs to show at once. Default: a list of the store's runs.",
            show_default=False,
            autocompletion=complete.run_names,
        ),
    ] = None,
    *,
    bind: Annotated[
        str,
        typer.Option(
            "--bind",
            metavar="HOST:PORT",
            help="The address to listen on; port 0 picks a free port.",
        ),
    ] = "127.0.0.1:8787",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Another host name under which a browser may ask for the page; may be repeated.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let other machines connect: anyone there can read the runs."
        ),
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Show runs in a browser, also runs that are being written: the page refreshes itself.

    Prints its address when it is ready. Ctrl-C ends it. To see the page of another machine, keep it
    on loopback there and use ssh -L.
    """
    from anchorlib.errors import MissingExtraError
    from anchorlib.reading import open_run
    from anchorlib.report import application

    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(
            "anchor ui needs starlette and uvicorn: pip install 'anchorlib[report]'"
        ) from error
    shown = [without_slash(run) for run in runs or ()]
    for run in shown:
        open_run(run, store=store)  # an unknown run is an error here, not in the browser
    listener = _listening(bind, insecure=insecure)
    host, port = listener.getsockname()[:2]
    hosts = _hosts(bind, host, port, allow_host or ())
    site = application(_source(store), hosts=hosts, shown=shown)
    address = f"http://{_bracketed(host)}:{port}/"
    if as_json:
        document({"address": address})
    else:
        emit(f"anchor: showing {store} on {address}")
    sys.stdout.flush()  # the program that started this waits for the line
    config = uvicorn.Config(site, log_level="error", lifespan="off", server_header=False)
    uvicorn.Server(config).run(sockets=[listener])
    return ExitCode.DONE


def _source(store: str) -> Source:
    from anchor_cli.commands.report import comparisons
    from anchorlib.reading import open_run
    from anchorlib.report import Source
    from anchorlib.store import list_runs, locate_store
    from anchorlib.upkeep import keeper_at

    keeper = cache(lambda: keeper_at(store))  # one connection for as long as the page is served
    return Source(
        listed=lambda: list_runs(locate_store(store)),
        alone=lambda: keeper().alone(),
        opened=lambda run: open_run(run, store=store),
        compared=lambda opened: comparisons(opened, (), store),
        writings=lambda: keeper().writings(),
    )


def _listening(bind: str, *, insecure: bool) -> socket.socket:
    """Returns a socket that listens on the address of `--bind`.

    Raises OptionError where `bind` is no address, where it cannot be bound, and where other
    machines could reach it although --insecure was not given.
    """
    from anchorlib.errors import OptionError

    host, colon, port = bind.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdecimal() or len(port) > _PORT_DIGITS:
        raise OptionError(f"--bind {bind!r}: give HOST:PORT, as 127.0.0.1:8787")
    if not insecure and not _loopback(host):
        raise OptionError(
            f"--bind {bind}: anyone who reaches it could look at the runs; use ssh -L, or say "
            "--insecure"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"cannot listen on {bind}: {reason}; port 0 picks one that is free"
        ) from error


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(bind: str, host: str, port: int, more: list[str] | tuple[str, ...]) -> list[str]:
    """Returns the values of the HTTP header Host with which a request is accepted.

    Any other value is refused, so that a foreign page cannot read the runs by DNS rebinding (its
    own host name made to lead to this machine).

    bind: the value of `--bind`. host, port: the address that the server listens on.
    more: further host names, from `--allow-host`.
    """
    names = [_bracketed(host), bind.rpartition(":")[0], "localhost", *more]
    return [f"{name}:{port}" for name in names]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
