"""The token that clients of a collector have to show, and what they have to set for it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anchor_cli.terminal import note

if TYPE_CHECKING:
    from anchor_server import Identity

__all__ = ["ShownCredentials", "say_exports"]

_VARIABLES: Final = ("ANCHOR_TOKEN", "ANCHOR_TOKEN_FILE")


@dataclass(frozen=True, slots=True)
class ShownCredentials:
    """Where a collector finds the tokens that clients have to show.

    token_file: the file with the one token; None without --token-file.
    access: the access file, which lists several tokens; None without --access.
    own: finds or makes the certificate and token of --self-signed; None without that option.
    """

    token_file: Path | None
    access: Path | None
    own: Callable[[], Identity] | None

    def now(self) -> tuple[str | None, Identity | None]:
        """Returns the token that clients have to show now, and the files of --self-signed.

        The token is None with an access file, and where clients need none; the files are None
        without --self-signed. Raises OptionError where both a token file and an access file are
        given, and where the token cannot be read; `own` may raise errors of its own.
        """
        from anchorlib.errors import OptionError

        if self.access is not None and self.token_file is not None:
            raise OptionError(
                "--access names every token and what it may: leave out --token-file, whose token "
                "may all"
            )
        identity = None if self.own is None else self.own()
        if self.access is not None:
            return None, identity
        token = _token(self.token_file)
        if token is None and identity is not None:
            token = _token(identity.token_file)
        return token, identity


def say_exports(address: str, identity: Identity, shown: ShownCredentials) -> None:
    """Prints on stderr the `export` lines that a client's shell needs, but never the token itself.

    address: host:port of the collector. identity: the files of --self-signed.
    """
    host = f"[{identity.host}]" if ":" in identity.host else identity.host
    port = address.rpartition(":")[2]
    lines = [f"ANCHOR_STORE=grpcs://{host}:{port}", f"ANCHOR_CA_FILE={identity.cert_file}"]
    if shown.token_file is not None:
        lines.append(f"ANCHOR_TOKEN_FILE={shown.token_file.absolute()}")
    elif shown.access is None and not (
        os.environ.get("ANCHOR_TOKEN") or os.environ.get("ANCHOR_TOKEN_FILE")
    ):
        lines.append(f"ANCHOR_TOKEN_FILE={identity.token_file}")
    own = ", and ANCHOR_TOKEN, as `anchor token` prints it" if shown.access is not None else ""
    note(
        f"what clients have to set{own}; on another machine, copy the files there (the token chmod "
        "600)"
    )
    for name, _, value in (line.partition("=") for line in lines):
        sys.stderr.write(f"export {name}={shlex.quote(value)}\n")
    sys.stderr.flush()


def _token(file: Path | None) -> str | None:
    """Reads the token from a file, or with None from ANCHOR_TOKEN or ANCHOR_TOKEN_FILE.

    Returns None where neither variable is set. Raises OptionError where a token cannot be read.
    """
    from anchorlib.wire import Credentials

    given = os.environ if file is None else {"ANCHOR_TOKEN_FILE": str(file)}
    # Only the token's variables: a collector has no use for a client's certificate.
    return Credentials.from_environment({n: given[n] for n in _VARIABLES if n in given}).token
