"""Parses URLs of object stores: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["ObjectAddress", "is_object_url", "parse_object_url"]

SCHEMES: Final = ("s3", "gs", "az")
_FORM: Final = re.compile(
    r"(?P<scheme>[a-z0-9]+)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{0,254})(?P<path>(/[^/\s?#]+)*)/?"
)
_SUFFIX: Final = ".zarr"


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A bucket (of Azure: a container) and the prefix in it under which runs lie.

    An address holds no secret, so it may be shown and stored.
    """

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    def split(self) -> tuple[ObjectAddress, str]:
        """Split the address of a run into (the address of its store, the name of the run).

        The name is "" where the address is that of a bucket.
        """
        outer, _, last = self.prefix.rpartition("/")
        store = ObjectAddress(self.scheme, self.bucket, outer)
        return store, last.removesuffix(_SUFFIX)


def is_object_url(text: str) -> bool:
    """Return whether `text` begins with s3://, gs:// or az://."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def parse_object_url(text: str) -> ObjectAddress:
    """Return the bucket and prefix that the URL of an object store names.

    Raises OptionError for every other text, and for a URL with a user, a key or a query ("?"). The
    error does not show such a URL, as it may hold credentials, which belong in the environment.
    """
    scheme, _, rest = text.partition("://")
    if "@" in rest or "?" in rest:
        raise OptionError(
            f"a {escape(scheme)}:// URL holds no credentials and no options: set the cloud's own "
            "variables (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_…)"
        )
    match = _FORM.fullmatch(text)
    path = match["path"].strip("/") if match else ""
    if match is None or scheme not in SCHEMES or any(p.startswith(".") for p in path.split("/")):
        raise OptionError(f"{escape(text[:200])} names no bucket; write s3://bucket/prefix")
    return ObjectAddress(scheme, match["bucket"], path)
