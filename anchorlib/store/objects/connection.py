"""A client of an object store, with time limits, and with its errors reduced to one line.

Credentials and endpoint come from the variables that the cloud's own tools read; obstore reads them
by itself. obstore's error texts may hold addresses, keys and the store's complete answer, so only
the status in them is passed on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from anchorlib.errors import AnchorError, CollectorError, MissingExtraError, OptionError
from anchorlib.names import escape, shown_address
from anchorlib.store.objects.address import ObjectAddress

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = [
    "RequestLimits",
    "connected",
    "faults_named",
    "is_gone",
]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How long an object store may take, in seconds, and how often a request is repeated.

    request: seconds for one request with all of its body. connect: seconds for making a connection.
    again: how often a request is repeated that failed or was answered with 5xx.
    retrying: seconds for all repetitions of a request together.
    """

    request: float = 120.0
    connect: float = 10.0
    again: int = 6
    retrying: float = 120.0


DEFAULT: Final = RequestLimits()

_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}


def connected(
    address: ObjectAddress,
    limits: RequestLimits | None = None,
    *,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> ObjectStore:
    """Return a client whose keys are relative to the address; no request is made yet.

    limits: None means the default limits.
    config: further settings of the store, as obstore names them.
    Raises MissingExtraError where obstore is not installed, OptionError for an endpoint in the
    environment that `_endpoint` refuses, CollectorError where the client refuses a setting.
    """
    try:
        from obstore import store as stores
    except ImportError:
        raise MissingExtraError(
            f"{address.scheme}:// needs obstore: pip install 'anchorlib[s3]'"
        ) from None
    limits = limits or DEFAULT
    endpoint = _endpoint(address.scheme)
    if address.scheme == "s3" and endpoint:
        config = {"endpoint": endpoint, **config}
    kinds: dict[str, Any] = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
    with faults_named(address, "cannot reach"):
        client: ObjectStore = kinds[address.scheme](
            address.bucket,
            prefix=address.prefix or None,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "timeout": timedelta(seconds=limits.request),
                "connect_timeout": timedelta(seconds=limits.connect),
            },
            retry_config={
                "max_retries": limits.again,
                "retry_timeout": timedelta(seconds=limits.retrying),
            },
            **config,
        )
    return client


def _endpoint(scheme: str) -> str:
    """Return the URL of the object store that the environment sets; "" for the cloud's own.

    scheme: "s3", "gs" or "az". Raises OptionError for a URL that holds a user or password, that is
    malformed, or that has no TLS and is not on this machine: answers could be changed on the way,
    and requests read.
    """
    chosen = ""
    for variable in _ENDPOINTS[scheme]:
        text = os.environ.get(variable, "")
        if text:
            _check_endpoint(variable, text)
            chosen = chosen or text
    return chosen


def _check_endpoint(variable: str, text: str) -> None:
    from anchorlib.wire import is_loopback  # gRPC is loaded only where something is far away

    if "@" in text:
        raise OptionError(f"{variable} holds a user or password: set the cloud's own variables")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise OptionError(f"{variable}={shown_address(text)} is no URL") from None
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return
    raise OptionError(
        f"{variable}={shown_address(text)}: an object store is reached by https://, and by http:// "
        "on this machine alone (127.0.0.1)"
    )


@contextmanager
def faults_named(address: ObjectAddress, doing: str, key: str = "") -> Iterator[None]:
    """Turn errors of a client inside the `with` into a CollectorError with a message of one line.

    The message says what failed, where, and what to do. FileNotFoundError (no such object), errors
    because a condition of a write does not hold, and errors of anchorlib are raised unchanged.
    doing: the beginning of the message, such as "cannot read". key: the object, for the message.
    """
    from obstore import exceptions as trouble

    try:
        yield
    except (AnchorError, trouble.AlreadyExistsError, trouble.PreconditionError):
        raise
    except Exception as error:  # obstore raises its own, OSError, ValueError
        if isinstance(error, FileNotFoundError) and not no_bucket(error):
            raise
        where = escape(f"{address}/{key}" if key else str(address))
        raise CollectorError(f"{doing} {where}: {_reason(error, address)}") from None


def no_bucket(error: Exception) -> bool:
    """Return whether an error says that the bucket is missing, and not just an object."""
    return re.search("<Code>(NoSuchBucket|ContainerNotFound)</Code>", str(error)) is not None


def is_gone(error: Exception) -> bool:
    """Return whether an error says that the requested range begins at or behind the object's end.

    Azure's store answers a range that begins right at the end with status 206 and no bytes, which
    the client reports as an error of its own; this is recognised too.
    """
    return _status(error) == 416 or "StartTooLarge" in str(error)


def _status(error: Exception) -> int:
    match = re.search(r"status code: (\d{3})", str(error))
    return int(match[1]) if match else 0


def _reason(error: Exception, address: ObjectAddress) -> str:
    """Return the reason of an error in anchorlib's words, without the client's text."""
    from obstore import exceptions as trouble

    status = _status(error)
    if no_bucket(error) or status == 404:
        return f"there is no bucket {escape(address.bucket)} (or no access to it)"
    refused = (trouble.PermissionDeniedError, trouble.UnauthenticatedError)
    if isinstance(error, refused) or status in (400, 401, 403):
        names = _CREDENTIALS[address.scheme]
        return f"it refuses these credentials (HTTP {status or 403}); see {names}"
    if status:
        return f"it answers HTTP {status}; try again later"
    if "kind: Timeout" in str(error):
        return "it does not answer in time; try again later"
    if "kind: Connect" in str(error):
        return "nothing answers there; is the endpoint right, and the network up?"
    if isinstance(error, trouble.NotSupportedError):
        return "it does not support that"
    if "kind: Interrupted" in str(error) or "kind: Decode" in str(error):
        return "the answer was cut off; try again later"
    return f"{type(error).__name__}; are its variables set ({_CREDENTIALS[address.scheme]})?"
