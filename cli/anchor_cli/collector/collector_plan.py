"""The options of `anchor serve`, checked and turned into settings of a `Collector`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anchor_cli.arguments import parse_rate, parse_seconds, parse_size
from anchor_cli.collector.archiving import archiving, try_archive
from anchor_cli.collector.shown_credentials import ShownCredentials

if TYPE_CHECKING:
    from anchor_server import Archiving, Identity, ServerTLS

__all__ = ["CollectorPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorPlan:
    """The options of `anchor serve`; each field has the name of its option.

    The properties check options together, and raise OptionError where these contradict each other.

    power: whether `--durability` is "power".
    """

    store: str
    bind: str
    token_file: Path | None
    access: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    self_signed: bool
    client_ca: Path | None
    insecure: bool
    power: bool
    read_only: bool
    max_streams: int
    idle_timeout: str
    max_run_size: str | None
    max_run_inodes: int | None
    max_runs: int | None
    max_rate: str | None
    metrics_bind: str | None
    archive: str | None
    archive_after: str
    keep_local: str
    without_conditions: bool

    @property
    def directory(self) -> Path:
        """The directory that runs are written into (`--store`); raises OptionError for a URL."""
        from anchorlib.errors import OptionError

        if "://" in self.store:
            raise OptionError(
                f"serve writes into a directory, not into {self.store}; give --store DIR"
            )
        return Path(self.store)

    @property
    def shown(self) -> ShownCredentials:
        """Where the collector finds the tokens that clients have to show."""
        own = partial(_own, self.directory, self.bind) if self.self_signed else None
        return ShownCredentials(self.token_file, self.access, own)

    @property
    def tls(self) -> ServerTLS | None:
        """The certificate files that the options name; None without TLS and with --self-signed."""
        from anchor_server import ServerTLS
        from anchorlib.errors import OptionError

        cert, key, client_ca = self.tls_cert, self.tls_key, self.client_ca
        if self.self_signed:
            if (cert, key) != (None, None):
                raise OptionError(
                    "--self-signed makes the certificate: leave out --tls-cert, --tls-key"
                )
            if self.read_only:
                raise OptionError(
                    "--self-signed keeps its certificate in the store, which --read-only leaves as "
                    "it is: give --tls-cert and --tls-key"
                )
            return None
        if cert is not None and key is not None:
            return ServerTLS(cert, key, client_ca)
        if (cert, key, client_ca) != (None, None, None):
            raise OptionError(
                "TLS needs both --tls-cert and --tls-key (and --client-ca beside them)"
            )
        return None

    @property
    def archiving(self) -> Archiving | None:
        """Where and when closed runs are archived; None where they stay in the store."""
        from anchorlib.errors import OptionError

        if self.archive is not None and self.read_only:
            raise OptionError(
                "--archive notes in the store what was archived, and --read-only leaves that as it "
                "is: leave one of them out"
            )
        return archiving(self.archive, self.archive_after, self.keep_local, self.without_conditions)

    @property
    def _amounts(self) -> Mapping[str, Callable[[], Any]]:
        """Functions that parse the options written as amounts, such as "30m".

        Each is keyed by the argument of `Collector` whose value it returns, and raises OptionError
        for an invalid text.
        """
        size, rate = self.max_run_size, self.max_rate
        return {
            "idle_timeout": lambda: parse_seconds(self.idle_timeout, "--idle-timeout"),
            "max_run_bytes": lambda: None if size is None else parse_size(size, "--max-run-size"),
            "max_rate": lambda: None if rate is None else parse_rate(rate, "--max-rate"),
        }

    def settings(self) -> tuple[dict[str, Any], Identity | None]:
        """Returns the keyword arguments for `Collector`, and the files of `--self-signed`.

        With --self-signed, makes the certificate and token where they are missing; without, the
        second result is None. With --archive, also checks that the archive can be written. Raises
        OptionError, MissingExtraError or StoreError where the options cannot be used.
        """
        from anchor_server import ServerTLS

        tls = self.tls
        token, identity = self.shown.now()
        if identity is not None:
            tls = ServerTLS(identity.cert_file, identity.key_file, self.client_ca)
        settings = {
            "tls": tls,
            "token": token,
            "access": self.access,
            "insecure": self.insecure,
            "fsync": self.power,
            "read_only": self.read_only,
            "max_streams": self.max_streams,
            "max_run_files": self.max_run_inodes,
            "max_runs": self.max_runs,
            "archiving": self.archiving,
        }
        settings |= {name: read() for name, read in self._amounts.items()}
        if self.archive is not None:
            try_archive(self.archive, without_conditions=self.without_conditions)
        return settings, identity

    def problems(self) -> list[str]:
        """Returns a sentence for each thing that would prevent the collector's start."""
        from anchor_server import CollectorSettings, problems

        sentences: list[str] = []
        directory = _tried(sentences, lambda: self.directory)
        tls = _tried(sentences, lambda: self.tls)
        token = _tried(
            sentences, lambda: ShownCredentials(self.token_file, self.access, None).now()[0]
        )
        for read in (*self._amounts.values(), lambda: self.archiving):
            _tried(sentences, read)
        # An unusable token or certificate is already among the problems: the address is judged as
        # if it could be used.
        asks = (token, self.token_file, self.access, self.client_ca) != (None,) * 4
        encrypts = (self.tls_cert, self.tls_key) != (None, None)
        wanted = CollectorSettings(
            directory,
            self.bind,
            tls,
            self_signed=self.self_signed,
            guarded=self.self_signed or (asks and encrypts),
            access=self.access,
            insecure=self.insecure,
            read_only=self.read_only,
            metrics_bind=self.metrics_bind,
            archive=None if "://" in (self.archive or "") else self.archive,
        )
        return sentences + problems(wanted)

    def remarks(self) -> list[str]:
        """Returns a sentence for each setting that may be a mistake but prevents no start."""
        from anchorlib.names import escape

        if self.archive is None or "://" in self.archive or Path(self.archive).is_dir():
            return []
        return [f"the archive {escape(self.archive)} is not there: it would be made"]


T = TypeVar("T")


def _tried(sentences: list[str], read: Callable[[], T]) -> T | None:
    """Calls `read` and returns its result.

    Where `read` raises an AnchorError, appends the error's text to `sentences` and returns None.
    """
    from anchorlib.errors import AnchorError

    try:
        return read()
    except AnchorError as error:
        sentences.append(str(error))
        return None


def _own(store: Path, bind: str) -> Identity:
    """Returns the self-signed certificate and token of a store; makes them where they are missing.

    bind: host:port that the collector listens on.
    """
    from anchor_server import own_identity

    return own_identity(store, bind.rpartition(":")[0])
