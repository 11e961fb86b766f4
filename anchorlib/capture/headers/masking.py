"""Masks secrets in the command lines, configurations and texts that the run header keeps.

    --wandb-key=4f1c…                        the value of an option whose name means a secret
    postgres://me:hunter2@db                 the password in a URL
    --header "Authorization: Bearer eyJ…"    a name and its value inside one argument
    ghp_16C7e42F292c6912E7710c838347Ae178B4a a token of a known format
    the value of $HF_TOKEN                   in any text

Names are judged by their words: `--key_dim`, `--tokenizer` and `--num_tokens` name no secret. A
secret is replaced by `***`. Where an argument goes on after a secret, the rest of the argument is
masked too, because the end of the secret is not known.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from anchorlib.capture.headers.secret_names import is_secret
from anchorlib.errors import OptionError
from anchorlib.record import HEADER_DEPTH

__all__ = ["MASK", "masked", "masked_text", "masked_value"]

MASK: Final = "***"

_LONG_OPTION: Final = re.compile(r"--[A-Za-z]|-[A-Za-z]$")
_SCHEME_WORDS: Final = ("bearer", "basic", "token", "digest")  # of an Authorization header
_PAIR: Final = re.compile(
    r"""(?<![\w.+-])(?P<name>[A-Za-z_+-][\w.+-]*)
    (?: ["'\])]*\s*=\s* | ["']\s*:\s* | :\s+ | (?P<gap>\s+)(?!-) )
    (?=(?P<value>[^\s,;&]{0,64}))""",
    re.VERBOSE,
)
_USER_PASSWORD: Final = re.compile(r"(?<=://)([^\s/:@]*):(?!\d{1,5}(?:[/?#]|$))\S{1,999}@")
_BEARER: Final = re.compile(r"\b(bearer)\s+\S{6,}", re.IGNORECASE)
_KNOWN: Final = re.compile(
    r"""(?<![A-Za-z0-9])(?:
    hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,} | hf_[A-Za-z0-9]{20,}
    | sk-(?!learn)(?=[A-Za-z_-]*[A-Z0-9])[A-Za-z0-9_-]{8,}
    | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{8,}
    | gh[pousr]_[A-Za-z0-9]{8,} | github_pat_\w{8,}
    | gl(?:pat|dt|rt|cbt|ptt|soat)-[\w-]{8,}
    | (?:AKIA|ASIA)[A-Z0-9]{12,}
    | xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{8,} | xapp-[A-Za-z0-9-]{8,}
    | https://hooks\.slack\.com/\S+
    | AIza[\w-]{20,} | ya29\.[\w-]{10,}
    | (?:npm|gsk|r8|dop_v1|shpat|shpss|wandb_v1|dckr_pat)_[A-Za-z0-9_]{16,}
    | pypi-AgE[\w-]{16,} | nvapi-[\w-]{16,} | dapi[0-9a-f]{16,} | SG\.[\w-]{8,}\.[\w-]{8,}
    | eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----.*
    )""",
    re.VERBOSE | re.DOTALL,
)
_ENVIRONMENT_LETTERS: Final = 8  # shorter values of variables occur in texts by chance
_FOLDERS: Final = ("PWD", "OLDPWD")


def masked(argv: Sequence[str]) -> list[str]:
    """Return the command line `argv` with its secrets masked."""
    shown: list[str] = []
    name = ""  # name of the option whose value may come next
    for argument in argv:
        if name and not _LONG_OPTION.match(argument) and is_secret(name, argument):
            shown.append(MASK)
            if argument.lower() not in _SCHEME_WORDS:
                name = ""
            continue
        shown.append(masked_text(argument))
        name = argument if argument.startswith("-") and "=" not in argument else ""
    return shown


def masked_value(name: str, value: Any, depth: int = HEADER_DEPTH) -> Any:
    """Return a value of a configuration with secrets masked, also inside mappings and lists.

    name: the key of the value, which may mean that the value is a secret. depth: how many levels of
        mappings and lists the value may have, itself included.

    Raises OptionError for a value that is nested deeper.
    """
    if not depth:
        raise OptionError(f"{name} is nested more than {HEADER_DEPTH} deep, which no header keeps")
    if isinstance(value, Mapping):
        inherited = name if is_secret(name, MASK) else ""
        return {
            key: masked_value(inherited or str(key), item, depth - 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked_value(name, item, depth - 1) for item in value]
    if isinstance(value, str | int | float) and is_secret(name, str(value)):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """Return `text` with secrets masked.

    A secret is what follows a name that means a secret (see `secret_names`), a token of a known
    format, a password in a URL, or the value of an environment variable whose name means a secret.
    """
    text = _without_pairs(_as_json(text))
    text = _USER_PASSWORD.sub(rf"\1:{MASK}@", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _KNOWN.sub(MASK, text)
    for secret in _of_environment():
        text = text.replace(secret, MASK)
    return text


def _as_json(text: str) -> str:
    """Return `text` with secrets masked by their keys if it is a JSON document; else unchanged."""
    if text[:1] not in ("{", "["):
        return text
    try:
        document = json.loads(text)
        without = masked_value("", document)
    except (ValueError, RecursionError, OptionError):
        return text
    return text if without == document else json.dumps(without, ensure_ascii=False)


def _without_pairs(text: str) -> str:
    """Return `text` with its end masked, from the first secret on that follows its name.

    In `token=x`, the name `token` says that `x` is a secret. A text without such a secret is
    returned as it is.
    """
    for pair in _PAIR.finditer(text):
        name = pair["name"]
        named = pair["gap"] is None or name.startswith("-")  # "--password x", not "the key is"
        if named and is_secret(name, pair["value"].strip("\"'")):
            return text[: pair.start("value")] + MASK
    return text


def _of_environment() -> list[str]:
    """Return the values of environment variables that are secrets, the longest first.

    Paths are left out, and so are values of fewer than 8 characters.
    """
    return _secrets_among(tuple(os.environ.items()))


@functools.lru_cache(maxsize=1)  # a session masks thousands of texts
def _secrets_among(variables: tuple[tuple[str, str], ...]) -> list[str]:
    secrets = {
        value
        for name, value in variables
        if len(value) >= _ENVIRONMENT_LETTERS
        and name not in _FOLDERS
        and not value.startswith("/")
        and is_secret(name, value)
    }
    return sorted(secrets, key=len, reverse=True)
