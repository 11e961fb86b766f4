"""No test leaves a session to the next."""

from __future__ import annotations

import pytest

from anchorlib.capture import active_session


@pytest.fixture(autouse=True)
def _ends_without_a_session():
    """What a test's models have opened in memory is closed; there is no other."""
    yield
    session = active_session()
    if session is not None:
        session.close()
        assert session.run == "poptorch"
