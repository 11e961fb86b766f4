"""The checks of `anchor doctor` of installed packages and of environment variables."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata

from anchor_cli.checkups.check_result import CheckResult
from anchorlib import __version__
from anchorlib.errors import AnchorError, OptionError
from anchorlib.names import check_run_name, escape, parse_list, suggest
from anchorlib.operations import traced_steps
from anchorlib.scope import scope

__all__ = ["EMULATE", "TESTED_TORCH", "environment", "packages", "summaries", "without_password"]

TESTED_TORCH = "2.13"
SHOWN = ("torch", "numpy", "zarr", "grpcio", "protobuf")
ON_FULL = ("block", "drop", "raise")
RECORDERS = ("process", "thread")
SECRETS = ("ANCHOR_TOKEN",)
CREDENTIALS = ("TOKEN", "TOKEN_FILE", "CA_FILE", "CLIENT_CERT", "CLIENT_KEY")
VARIABLES = (
    *("ANCHOR_STORE", "ANCHOR_RUN", "ANCHOR_TENSORS", "ANCHOR_RANKS", "ANCHOR_DISABLED"),
    *("ANCHOR_WATCH", "ANCHOR_PHASES", "ANCHOR_STEPS", "ANCHOR_TRACE", "ANCHOR_GRAFT"),
    *("ANCHOR_ON_FULL", "ANCHOR_RECORDER", "ANCHOR_SPOOL", "ANCHOR_SPOOL_LIMIT"),
    *("ANCHOR_FAILOVER_SECONDS",),
    *("ANCHOR_PERTURB", "ANCHOR_DEBUG"),
    *(f"ANCHOR_{name}" for name in CREDENTIALS),
)
LAUNCHERS = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_PROCID")
EMULATE = "TORCHINDUCTOR_EMULATE_PRECISION_CASTS"


def packages() -> Iterator[CheckResult]:
    """Checks the installed packages, and yields the results.

    The first result lists versions. Others say which required packages are missing or too old, and
    whether torch is another version than the tested one.
    """
    version_of = {name: _version(name) for name in SHOWN}
    shown = ", ".join(f"{name} {version}" for name, version in version_of.items() if version)
    own = f"anchorlib {__version__}, Python {platform.python_version()}"
    yield CheckResult("ok", "versions", f"{own}, {shown}")
    yield from _unmet()
    torch = version_of["torch"]
    if torch and not torch.startswith(f"{TESTED_TORCH}."):
        yield CheckResult(
            "beware",
            "torch",
            f"{torch} is not {TESTED_TORCH}, the version that was tested",
            "compare an observed run with an unobserved one before relying on it",
        )


def summaries() -> Iterator[CheckResult]:
    """Checks whether numba or the slower numpy computes summaries here, and yields the result.

    To find out, the summaries' code is compiled with numba, which takes seconds.
    """
    from anchorlib.summary import SCANS

    numba = _version("numba")
    if numba is None:
        text = "by numpy; with numba (pip install 'anchorlib[fast]') in a third of the time"
        yield CheckResult("ok", "summaries", text)
    elif fault := SCANS.load():
        text = f"by numpy, as numba {numba} compiles nothing here ({escape(fault)})"
        yield CheckResult("beware", "summaries", text, "pip install -U 'anchorlib[fast]'")
    else:
        yield CheckResult("ok", "summaries", f"compiled by numba {numba}")


def environment(environ: Mapping[str, str] = os.environ) -> Iterator[CheckResult]:
    """Checks the environment variables that anchorlib reads, and yields the results.

    The first result lists those that are set, with secrets replaced by `***`. Others warn of names
    that begin with ANCHOR_ and are not known, of invalid values, and of variables that change what
    a training computes or records.
    """
    seen = [name for name in (*VARIABLES, *LAUNCHERS, EMULATE) if environ.get(name)]
    variables = " ".join(f"{name}={_shown(name, environ[name])}" for name in seen)
    yield CheckResult(
        "ok", "environment", variables or "no variable of anchorlib or of a launcher is set"
    )
    for name in sorted(set(environ) - set(VARIABLES)):
        if name.startswith("ANCHOR_") and environ[name]:
            yield CheckResult(
                "beware",
                escape(name),
                f"no such variable is read{suggest(name, VARIABLES)}",
                "unset it, or correct its name",
            )
    if environ.get("ANCHOR_DISABLED", "0") not in ("", "0"):
        yield CheckResult(
            "beware", "ANCHOR_DISABLED", "nothing will be recorded", "unset it to record"
        )
    if environ.get("ANCHOR_PERTURB"):
        yield CheckResult(
            "beware", "ANCHOR_PERTURB", "parameters will be perturbed, as `anchor noise` does",
            "unset it to train as usual",
        )  # fmt: skip
    if environ.get("ANCHOR_GRAFT"):
        yield CheckResult(
            "beware", "ANCHOR_GRAFT", "a training goes on with another run's values, as in "
            "`anchor graft`", "unset it to train as usual",
        )  # fmt: skip
    for name, check in CHECKS.items():
        if value := environ.get(name):
            yield from _checked(name, value, check)
    yield from _credentials(environ)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _unmet() -> Iterator[CheckResult]:
    """Yields a result for each package that anchorlib requires and that is missing or too old."""
    try:
        required = metadata.requires("anchorlib") or []
    except metadata.PackageNotFoundError:
        return
    for text in required:
        name = re.match(r"[A-Za-z0-9_.-]+", text)
        if name is None or "extra ==" in text:
            continue
        have, floor = _version(name[0]), re.search(r">=([0-9.]+)", text)
        if have is None or (floor and _numbers(have) < _numbers(floor[1])):
            is_there = "is not installed" if have is None else f"is {have}"
            yield CheckResult("broken", name[0], f"{is_there}", f"pip install '{text.strip()}'")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _shown(name: str, value: str) -> str:
    if name in SECRETS:
        return "***"
    return escape(without_password(value))


def without_password(text: str) -> str:
    """Returns a URL in which `***` replaces user and password, which stand before the "@"."""
    return re.sub(r"(?<=//)[^/@]*@", "***@", text)


def _whole_numbers(text: str) -> None:
    ranks = [part.strip() for part in text.split(",") if part.strip()]
    if not ranks or not all(rank.isdecimal() for rank in ranks):
        raise OptionError("it is a list of ranks, as 0,8")


def _one_of(choices: Sequence[str]) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in choices:
            raise OptionError(f"choose one of {', '.join(choices)}")

    return check


def _limit(_: str) -> None:
    from anchorlib.spool import spool_room

    spool_room()


def _failover(value: str) -> None:
    from anchorlib.wire import failover_seconds

    failover_seconds({"ANCHOR_FAILOVER_SECONDS": value})


CHECKS = {
    "ANCHOR_RUN": check_run_name,
    "ANCHOR_RANKS": _whole_numbers,
    "ANCHOR_ON_FULL": _one_of(ON_FULL),
    "ANCHOR_RECORDER": _one_of(RECORDERS),
    "ANCHOR_TENSORS": parse_list,
    "ANCHOR_WATCH": parse_list,
    "ANCHOR_PHASES": lambda text: scope(environ={"ANCHOR_PHASES": text}),
    "ANCHOR_STEPS": lambda text: scope(environ={"ANCHOR_STEPS": text}),
    "ANCHOR_TRACE": lambda text: traced_steps({"ANCHOR_TRACE": text}),
    "ANCHOR_SPOOL_LIMIT": _limit,
    "ANCHOR_FAILOVER_SECONDS": _failover,
}


def _checked(name: str, value: str, check: object) -> Iterator[CheckResult]:
    assert callable(check)
    try:
        check(value)
    except AnchorError as error:
        yield CheckResult(
            "broken",
            name,
            f"{escape(value)} is invalid: {error}",
            "correct it: no session starts with this value",
        )


def _credentials(environ: Mapping[str, str]) -> Iterator[CheckResult]:
    if not any(environ.get(f"ANCHOR_{name}") for name in CREDENTIALS):
        return
    from anchorlib.wire import Credentials

    try:
        Credentials.from_environment(environ)
    except AnchorError as error:
        yield CheckResult("broken", "credentials", str(error))
