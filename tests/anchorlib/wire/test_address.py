"""URLs of collectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import AnchorError, OptionError
from anchorlib.wire import DEFAULT_PORT, Address, is_address, is_loopback, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("grpc://localhost", Address("localhost")),
        ("grpc://localhost/", Address("localhost")),
        ("grpc://node7.cluster:6000", Address("node7.cluster", 6000)),
        ("grpcs://10.0.0.1:6000/run1", Address("10.0.0.1", 6000, tls=True, run="run1")),
        ("grpc://[::1]:6000/run-1.x/", Address("::1", 6000, run="run-1.x")),
    ],
)
def test_a_url_names_host_port_security_and_run(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:50051",
        "http://localhost",
        "grpc://",
        "grpc://:50051",
        "grpc://host:0",
        "grpc://host:65536",
        "grpc://host:port",
        "grpc://host/run1/rank0",
        "grpc://host/..",
        "grpc://host/.hidden",
        "grpc://host /run",
        "grpc://host\n",
        "grpc://::1:50051",
    ],
)
def test_what_is_no_url_of_a_collector_is_refused_in_one_line(text):
    with pytest.raises(AnchorError) as caught:
        parse_address(text)
    assert "\n" not in str(caught.value)


def test_a_password_in_a_url_is_not_repeated():
    with pytest.raises(OptionError) as caught:
        parse_address("grpc://user:s3cret@host:50051")
    assert "s3cret" not in str(caught.value)


HOSTS = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True) | st.ip_addresses().map(str)
RUNS = st.none() | st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,9}", fullmatch=True)


@pytest.mark.slow
@given(st.builds(Address, HOSTS, st.integers(1, 65535), st.booleans(), RUNS))
def test_an_address_is_read_back_from_its_own_text(address):
    assert is_address(str(address))
    assert parse_address(str(address)) == address


def test_the_port_may_be_left_out():
    assert parse_address("grpc://host").target == f"host:{DEFAULT_PORT}"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_no_other_machine_reaches_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node7", "localhost.example"])
def test_everything_else_may_be_reached(host):
    assert not is_loopback(host)
