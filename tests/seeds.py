"""Seeds of laws whose cases are drawn: some in each run of the tests, many by `make diagnosis`."""

from __future__ import annotations

import pytest


def seeds(checked: int, tested: int, wide: int) -> list[object]:
    """Parameters 0 to `wide`: `make check` runs those below `checked`, `make test` to `tested`."""
    marks = [pytest.mark.slow, pytest.mark.wide]
    return [
        pytest.param(seed, marks=marks[: (seed >= checked) + (seed >= tested)])
        for seed in range(wide)
    ]
