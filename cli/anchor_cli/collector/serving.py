"""Starts the collector that a plan describes, and ends it after a signal.

Where the plan is only checked, what would prevent the start is printed, and nothing starts.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_cli.collector.collector_plan import CollectorPlan
from anchor_cli.collector.shown_credentials import ShownCredentials, say_exports
from anchor_cli.collector.signals import Signals
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import document, emit, note

if TYPE_CHECKING:
    from anchor_server import Collector, Identity

__all__ = ["collect", "say_problems"]

_GRACE = 30.0  # seconds that streams and readers have to end after a signal


def say_problems(plan: CollectorPlan, *, as_json: bool) -> ExitCode:
    """Prints what would prevent the start of a collector, for `--check`; returns the exit code.

    The exit code is 2 where something would prevent the start. Else it is 0; then the remarks on
    possible mistakes are printed, and without `as_json` the address.
    """
    problems = plan.problems()
    if as_json:
        document({"starts": not problems, "problems": problems})
    for said in problems or plan.remarks():
        note(said)
    if not (problems or as_json):
        if plan.read_only:
            emit(f"anchor: would serve on {plan.bind} from {plan.store}, read-only")
        else:
            emit(f"anchor: would collect on {plan.bind} into {plan.store}")
    return ExitCode.USAGE if problems else ExitCode.DONE


def collect(plan: CollectorPlan, signals: Signals, *, as_json: bool) -> ExitCode:
    """Runs the collector of a plan until a signal ends it; returns the exit code.

    The exit code is 0, or 2 where the port cannot be bound. Raises OptionError, MissingExtraError
    or StoreError where the plan's settings cannot be used.
    """
    from anchor_server import allow_files

    shown = plan.shown
    settings, identity = plan.settings()
    allow_files(plan.max_streams)
    collector = _listening(plan.directory, plan.bind, **settings)
    if collector is None:
        return ExitCode.USAGE
    try:
        with _metrics(collector, plan.metrics_bind, insecure=plan.insecure):
            _begin(collector, identity, shown, as_json=as_json, read_only=plan.read_only)
            signals.wait(lambda: _read_again(collector, shown))
            collector.stop(_GRACE, readers=True)
    finally:
        collector.stop(_GRACE)  # after an error before the first stop; otherwise this does nothing
    return _ended(collector)


def _begin(
    collector: Collector,
    identity: Identity | None,
    shown: ShownCredentials,
    *,
    as_json: bool,
    read_only: bool,
) -> None:
    collector.start()
    if identity is not None:
        say_exports(collector.address, identity, shown)
    _say_ready(collector, as_json=as_json, read_only=read_only)


def _ended(collector: Collector) -> ExitCode:
    """Returns the exit code of a stopped collector.

    Where a client's call still hangs, ends the process at once instead of returning: Python would
    wait for the call's thread.
    """
    if not collector.has_ended:
        note("a call did not end and was abandoned; all acknowledged records are stored")
        sys.stdout.flush()
        os._exit(ExitCode.DONE)
    return ExitCode.DONE


def _listening(store: Path, bind: str, **settings: Any) -> Collector | None:
    """Returns a collector that has bound its port and is not started yet.

    None where the port cannot be bound; the reason is then printed on stderr. settings: keyword
    arguments of `Collector`.
    """
    from anchor_server import Collector
    from anchorlib.errors import CollectorError

    try:
        return Collector(store, bind, **settings)
    except CollectorError as error:
        # A port in use is a wrong --bind, not a collector that could not be reached.
        note(str(error))
        return None


@contextmanager
def _metrics(collector: Collector, bind: str | None, *, insecure: bool) -> Iterator[None]:
    """A context in which the collector's metrics are served over HTTP.

    bind: the value of `--metrics-bind`; with None no metrics are served.
    insecure: whether other machines may reach the metrics.
    """
    if bind is None:
        yield
        return
    from anchor_server import MetricsPort

    port = MetricsPort(bind, collector.tally, collector.store, insecure=insecure)
    try:
        note(f"metrics on http://{port.address}/metrics")
        yield
    finally:
        port.close()


def _read_again(collector: Collector, shown: ShownCredentials) -> None:
    """Makes the collector read its certificates, token and access file again, after a SIGHUP.

    Where a file cannot be used, what was read before stays in use, and a warning is logged.
    """
    from anchorlib.errors import AnchorError

    # The log, not stderr: SIGHUP may mean that the terminal is gone.
    log = logging.getLogger("anchor_server")
    try:
        collector.renew(shown.now()[0])
    except AnchorError as error:
        log.warning("certificates and token stay as they were: %s", error)
    else:
        log.info("certificates and token were read again")


def _say_ready(collector: Collector, *, as_json: bool, read_only: bool) -> None:
    if as_json:
        document({"address": collector.address, "store": str(collector.store)})
    elif read_only:
        emit(f"anchor: serving on {collector.address} from {collector.store}, read-only")
    else:
        emit(f"anchor: collecting on {collector.address} into {collector.store}")
    sys.stdout.flush()  # the program that started this waits for the line
