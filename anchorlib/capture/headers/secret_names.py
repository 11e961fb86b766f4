"""Whether the name of an option, a variable or a setting means that its value is a secret.

A name is split into words: `--wandb-key`, `WANDB_KEY`, `wandb.key` and `wandbKey` all have the
words wandb and key. A last word such as `dim` or `path` means that the value is a fact about a key
or token, not the key itself.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

__all__ = ["is_secret"]

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# Words that mean a secret anywhere in a name.
_PLAIN: Final = (
    *("password", "passwd", "passphrase", "passcode", "secret", "credential"),
    *("apikey", "accesskey", "secretkey", "privatekey"),
    *("authtoken", "accesstoken", "apitoken", "hftoken", "wandbkey"),
)
_PAIRS: Final = ("api", "access", "secret", "private", "auth", "encryption", "signing")
# Words that mean a secret as the last word of a name, whatever the value is.
_LAST: Final = ("pw", "pwd", "auth", "oauth", "authorization", "bearer", "cookie", "jwt", "cred")
# Words that mean a secret as the last word, unless the name has a word of tensors, tables or
# tokenizers (`_OF_DATA`), or the value is a number.
_LAST_PERHAPS: Final = ("key", "token", "pass", "sas", "sig")
_OF_DATA: Final = """
attention attn audio backward band batch begin bos cache caption chosen class cls col column data
dataset decoder dict eos eot eval feature field first forced foreign forward group high image img
index input instance join label last loss low map mask max message metric min monitor multi n new
next num order output pad partition per placeholder prefix primary prompt public query rejected
response sample score sep shard single sort sot special start state stop suffix target text think
total two unk val video vision
"""
_ABOUT: Final = """
backend count dim dims dir dropout enabled endpoint env expiry file folder host init layer len
length level manager max method min mode name path policy port provider required scheme server size
sock timeout ttl type uri url var
"""
_SWITCH: Final = re.compile(r"(?i:true|false|none|null|yes|no|on|off|)")
_OF_DATA_WORDS: Final = frozenset(_OF_DATA.split())
_ABOUT_WORDS: Final = frozenset(_ABOUT.split())
_NUMBER: Final = re.compile(r"[+-]?[\d_.]+(?:e[+-]?\d+)?")


def is_secret(name: str, value: str) -> bool:
    """Return whether the words of `name` say that `value` is a secret.

    Words such as "password" say so for any value. Other words do not say so of a switch such as
    "true", and some, such as "token", not of a number either.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    singular = [word if word.endswith("ss") else word.removesuffix("s") for word in words]
    if any(word.endswith(_PLAIN) for word in singular):
        return True
    if not words or words[-1] in _ABOUT_WORDS or _SWITCH.fullmatch(value):
        return False
    return words[-1] in _LAST or _names_access(singular) or _perhaps(words, value)


def _names_access(words: list[str]) -> bool:
    """Return whether the words contain a pair such as "api key" or "access token"."""
    return any(one in _PAIRS and two in ("key", "token") for one, two in pairwise(words))


def _perhaps(words: list[str], value: str) -> bool:
    if words[-1] not in _LAST_PERHAPS or not _OF_DATA_WORDS.isdisjoint(words):
        return False
    return _NUMBER.fullmatch(value) is None
