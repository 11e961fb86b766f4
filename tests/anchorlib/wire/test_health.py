"""A collector is asked whether it is well."""

from __future__ import annotations

import pytest

from anchor_server import Collector
from anchorlib.errors import CollectorError
from anchorlib.wire import ask_health, parse_address


def test_a_collector_says_whether_it_serves_and_one_that_is_gone_is_an_error(tmp_path):
    with Collector(tmp_path, bind="127.0.0.1:0") as collector:
        address = parse_address(f"grpc://{collector.address}")
        state, seconds = ask_health(address)
        assert state == "SERVING"
        assert seconds > 0
        collector._health.say(serving=False)
        assert ask_health(address)[0] == "NOT_SERVING"
    with pytest.raises(CollectorError, match="no collector answers"):
        ask_health(address, timeout=2)
