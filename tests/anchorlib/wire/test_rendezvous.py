"""Which of several collectors a rank goes to: everyone finds the same, and few move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import AnchorError, OptionError
from anchorlib.sinks import check_collector
from anchorlib.wire import Address, Route, by_hash, failover_seconds, parse_addresses

HOSTS = st.lists(st.text("abc-.7", min_size=1, max_size=8), min_size=2, max_size=7, unique=True)
RUNS = st.text("run1._-x", min_size=1, max_size=12)
RANKS = st.integers(0, 2000)


@given(HOSTS, RUNS, RANKS, st.randoms())
def test_the_order_of_the_list_does_not_matter(hosts, run, rank, chance):
    collectors = [Address(host) for host in hosts]
    found = by_hash(collectors, run, rank)
    assert sorted(found, key=str) == sorted(collectors, key=str)
    chance.shuffle(collectors)
    assert by_hash(collectors, run, rank) == found


@given(HOSTS, RUNS, RANKS)
def test_without_one_collector_the_others_keep_their_order(hosts, run, rank):
    collectors = [Address(host) for host in hosts]
    found = by_hash(collectors, run, rank)
    for gone in collectors:
        rest = [one for one in collectors if one != gone]
        assert by_hash(rest, run, rank) == tuple(one for one in found if one != gone)


def test_ranks_are_spread_evenly_and_so_are_those_of_one_that_fails():
    collectors = [Address(f"node{n}.cluster") for n in range(4)]
    orders = [by_hash(collectors, "run1", rank) for rank in range(4096)]
    for place in range(2):
        counts = [sum(order[place] is one for order in orders) for one in collectors]
        assert all(900 <= count <= 1150 for count in counts), counts
    heirs = [order[1] for order in orders if order[0] is collectors[0]]
    assert all(heirs.count(one) >= len(heirs) / 4 for one in collectors[1:])


def test_the_hash_is_one_that_never_changes():
    # A job that is restarted by a later version has to find its collectors where they were.
    collectors = parse_addresses("grpc://a:50051,b:50051,c:50051")
    found = ["".join(one.host for one in by_hash(collectors, "run1", rank)) for rank in range(8)]
    assert found == ["cba", "abc", "cba", "acb", "cab", "cab", "bac", "bca"]


@given(HOSTS, RUNS, RANKS)
def test_a_route_goes_round(hosts, run, rank):
    route = Route([Address(host) for host in hosts], run, rank, 1.0)
    seen = []
    for _ in hosts:
        seen.append(route.address)
        route.move()
    assert (tuple(seen), route.part) == (route.order, 0)


def test_who_finds_nobody_in_time_gives_each_one_twice_as_long():
    route = Route([Address("a"), Address("b")], "run1", 0, 1.0)
    waits = []
    for _ in range(6):
        waits.append(route.seconds)
        route.move()
    assert waits == [1, 1, 2, 2, 4, 4]
    route.note_progress()
    assert route.seconds == 1.0


def test_several_addresses_are_read_from_one_url():
    found = parse_addresses("grpcs://a:6000,[::1],b.c/run1")
    assert found == (
        Address("a", 6000, tls=True, run="run1"),
        Address("::1", tls=True, run="run1"),
        Address("b.c", tls=True, run="run1"),
    )
    assert parse_addresses("grpc://a") == (Address("a"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grpc://a,A:50051", "a:50051 stands twice among the collectors"),
        ("grpc://a,,b", "'grpc://a,,b' is no list of collectors, for a name is missing beside"),
        ("grpc://a,", "a name is missing beside a comma"),
        ("grpc://a,grpc://b", "'grpc://a,grpc://b' .* each collector has a scheme of its own"),
        ("grpcs://a:1/run1,grpcs://b:2/run1", "the scheme stands once, and the run at the end"),
        ("grpc://a,b:0", "is no collector's address"),
        ("grpc://a/run1,b", "a collector stands behind the name of a run"),
    ],
)
def test_what_is_no_list_is_refused_in_one_line(text, said):
    with pytest.raises(AnchorError, match=said) as error:
        check_collector(text)
    assert "\n" not in str(error.value)


def test_a_collector_may_stay_away_for_half_a_minute_unless_told_otherwise():
    assert failover_seconds({}) == failover_seconds({"ANCHOR_FAILOVER_SECONDS": ""}) == 30.0
    assert failover_seconds({"ANCHOR_FAILOVER_SECONDS": "2.5"}) == 2.5


@pytest.mark.parametrize("told", ["0", "-1", "soon", "nan", "inf", "1e9", "30s"])
def test_seconds_that_cannot_be_are_refused_before_anything_begins(told, monkeypatch):
    monkeypatch.setenv("ANCHOR_FAILOVER_SECONDS", told)
    with pytest.raises(OptionError, match=r"FAILOVER_SECONDS='.*' is no number of seconds"):
        check_collector("grpc://a,b")
    check_collector("grpc://a")  # which waits for ever
