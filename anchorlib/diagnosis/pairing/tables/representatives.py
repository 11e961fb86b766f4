"""Ranks that are not read, since another rank of their run, which is equal, is read in their place.

Of two archived runs it is known beforehand which ranks are equal in both, bit for bit, and which of
these ranks have equal tables except for values (`anchorlib.diagnosis.digest_comparison`). The
lowest of the ranks with equal tables is read, and its columns are used for the others, too. The
values and digests of these others are then not known, and nothing must be concluded from the
digests that stand in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["NO_REPRESENTATIVES", "Representatives"]

Representatives = Mapping[int, int]
"""Ranks that are not read -> the rank that stands for each, in both runs."""
NO_REPRESENTATIVES: Representatives = MappingProxyType({})
