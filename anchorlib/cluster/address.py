"""Imports dask where it is installed, and checks the address of a dask scheduler."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from anchorlib.errors import MissingExtraError, OptionError
from anchorlib.names import quoted

__all__ = ["checked_address", "distributed", "quiet"]

_FORM: Final = re.compile(r"(?:(?P<scheme>[a-z]+)://)?(?P<host>\[[^\]]+\]|[^:/@\s]+):(?P<port>\d+)")
_IN_PROCESS: Final = "inproc://"
TALKING: Final = ("distributed", "distributed.client", "tornado", "asyncio")
SILENT: Final = logging.CRITICAL + 1


def distributed() -> Any:
    """Return the package `distributed`; raise MissingExtraError where it is not installed."""
    try:
        import distributed as package
    except ImportError as error:
        raise MissingExtraError("--dask needs dask: pip install 'anchorlib[dask]'") from error
    return package


@contextmanager
def quiet() -> Iterator[None]:
    """Silence dask's loggers while the context lasts: anchorlib's own errors report failures."""
    distributed()  # sets up its loggers when it is imported
    loggers = [logging.getLogger(name) for name in TALKING]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(SILENT)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def checked_address(text: str) -> str:
    """Return a scheduler's address with its scheme, which is tcp where none is given.

    An inproc:// address is returned unchecked. Raises MissingExtraError without dask, OptionError
    for an address that dask cannot use, and for tls:// without certificates.
    """
    if text.startswith(_IN_PROCESS):
        return text
    match = _FORM.fullmatch(text)
    scheme = "tcp" if match is None else match["scheme"] or "tcp"
    known = sorted(set(distributed().comm.registry.backends) - {"inproc"})
    if match is None or scheme not in known or not 0 < int(match["port"]) < 1 << 16:
        raise OptionError(
            f"{quoted(text.rpartition('@')[2][:200])} is no address of a dask scheduler: write "
            f"tcp://host:port, as `dask scheduler` tells it (or {', '.join(known)})"
        )
    if scheme == "tls" and not distributed().Security().get_connection_args("client").get(
        "ssl_context"
    ):
        raise OptionError(
            "tls:// needs certificates, which dask's configuration names: set "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT and …__CLIENT__KEY"
        )
    return f"{scheme}://{match['host']}:{match['port']}"
