"""Ranks that are not read, since another rank of their run, which is equal, is read in their place.

Of two archived runs it is known beforehand which ranks are equal in both, bit for bit, and which of
these ranks have equal tables except for values (`anchorlib.diagnosis.digest_comparison`). The
lowest rank of such a group is read, and its columns are used for the other ranks, too. The other
ranks' own values and digests are then not known, and nothing must be concluded from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["NO_REPRESENTATIVES", "Representatives"]

Representatives = Mapping[int, int]
"""Ranks that are not read -> the rank that stands for each, in both runs."""
NO_REPRESENTATIVES: Representatives = MappingProxyType({})
