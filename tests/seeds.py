"""How many cases of a law are drawn: few in `make check`, more in `make test`, most in `diagnosis`.

Hypothesis has a profile for each, which pytest's option `--hypothesis-profile` chooses. The first
two draw the same cases each time: what fails there, the last change broke. `wide` draws new ones.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

SHARES = {"check": 20, "test": 50, "wide": 400}
"""Of each profile, how many cases of a hundred are drawn."""


def profiles() -> None:
    """Register the profiles, and choose that of `make test` until an option chooses another.

    No example has a deadline: a slow one on a busy machine is no defect.
    """
    for name, share in SHARES.items():
        settings.register_profile(
            name, deadline=None, max_examples=share, derandomize=name != "wide"
        )
    settings.load_profile("test")


def examples(of_all: int) -> int:
    """How many of `of_all` cases are drawn in this profile: few cases where each one is dear."""
    return max(3, of_all * settings.default.max_examples // 100)


def seeds(checked: int, tested: int, wide: int) -> list[object]:
    """Parameters 0 to `wide`: `make check` runs those below `checked`, `make test` to `tested`."""
    marks = [pytest.mark.slow, pytest.mark.wide]
    return [
        pytest.param(seed, marks=marks[: (seed >= checked) + (seed >= tested)])
        for seed in range(wide)
    ]
