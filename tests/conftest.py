"""What all tests share: how hypothesis judges time."""

from __future__ import annotations

from hypothesis import settings

# A slow example on a busy machine is no defect; figures belong into benchmarks/.
settings.register_profile("anchorlib", deadline=None)
settings.load_profile("anchorlib")
