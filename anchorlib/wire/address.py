"""URLs of collectors: `grpc://host:port[/run]`, or `grpcs://` for collectors that speak TLS.

One URL names several collectors that share the ranks of a run: `grpcs://a:50051,b:50051[/run]`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from anchorlib.errors import OptionError
from anchorlib.names import check_stored_run_name, shown_address

__all__ = [
    "DEFAULT_PORT",
    "Address",
    "is_address",
    "is_loopback",
    "list_text",
    "parse_address",
    "parse_addresses",
]

DEFAULT_PORT = 50051

_FORM = re.compile(
    r"(?P<scheme>grpcs?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?"
    r"(?:/(?P<run>[^/]*)/?)?"
)


@dataclass(frozen=True, slots=True)
class Address:
    """A collector's address, as parsed from its URL.

    host: a name or an IP address; an IPv6 address is without its brackets.
    tls: whether the scheme is grpcs.
    run: the name of the run that the URL ended in; None if it named no run.
    """

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    run: str | None = None

    @property
    def target(self) -> str:
        """The address as `host:port`; an IPv6 host is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        run = "" if self.run is None else f"/{self.run}"
        return f"{'grpcs' if self.tls else 'grpc'}://{self.target}{run}"


def is_address(text: str) -> bool:
    """Return whether `text` is meant as a collector's URL: begins with `grpc://` or `grpcs://`."""
    return text.startswith(("grpc://", "grpcs://"))


def parse_address(text: str) -> Address:
    """Parse the URL of one collector.

    Raises OptionError if `text` is no such URL, InvalidNameError for a forbidden name of a run.
    """
    match = _FORM.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise OptionError(
            f"'{shown_address(text)}' is no collector's address; write grpc://host:port, or "
            "grpcs://host:port for TLS, with /run at the end where a run is meant"
        )
    run = check_stored_run_name(match["run"]) if match["run"] else None
    return Address(match["host"].strip("[]"), port, match["scheme"] == "grpcs", run)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse a URL that names one or several collectors; return an Address for each of them.

    The run at the URL's end, if there is one, is the `run` of each Address.

    Raises what `parse_address` raises, and OptionError if a collector is named twice.
    """
    scheme, separator, rest = text.partition("://")
    if "," in rest:
        _check_list(text, rest)
    hosts, slash, run = rest.partition("/")
    collectors = tuple(
        parse_address(f"{scheme}{separator}{host}{slash}{run}") for host in hosts.split(",")
    )
    targets = [collector.target.lower() for collector in collectors]
    twice = [target for target in targets if targets.count(target) > 1]
    if twice:
        raise OptionError(f"{twice[0]} stands twice among the collectors: name each one once")
    return collectors


def _check_list(text: str, rest: str) -> None:
    """Raise OptionError for a malformed list of collectors, with a message that shows the form.

    text: the URL. rest: the URL without its scheme.
    """
    hosts = rest.partition("/")[0].split(",")
    if "://" in rest:
        why = "each collector has a scheme of its own"
    elif "" in hosts:
        why = "a name is missing beside a comma"
    elif "," in rest.partition("/")[2]:
        why = "a collector stands behind the name of a run"
    else:
        return
    raise OptionError(
        f"'{shown_address(text)}' is no list of collectors, for {why}: the scheme stands once, and "
        "the run at the end, as in grpcs://a:50051,b:50051/run1"
    )


def list_text(collectors: Sequence[Address]) -> str:
    """Return the URL that names all `collectors`, without a run.

    The URL lists them sorted, so that the order in which they are given does not change it.
    """
    scheme = "grpcs" if collectors[0].tls else "grpc"
    return f"{scheme}://{','.join(sorted(one.target for one in collectors))}"


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address, which only this machine itself can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
