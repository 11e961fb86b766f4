"""A port by hand is paired whole, whatever is wrong in it."""

from __future__ import annotations

import pytest

import anchorlib
from tests.diagnosis.ports import PORTS, Ported, draw_port
from tests.seeds import seeds

pytestmark = pytest.mark.slow  # pairs of whole trainings

SEEDS = seeds(checked=0, tested=8, wide=45)


def wrong_pairs(ported, found):
    """What of the port's members and parameters stands for another than it should, or for none."""
    members = PORTS[ported.net].members()
    a, b = ({one.name for one in side.tensors} for side in (found.alignment.a, found.alignment.b))
    renamed = {one.a: one.b for one in found.renamed}
    wrong = []
    for name in a:
        member = max(
            (m for m in members if name == m or name.startswith(f"{m}.")), key=len, default=None
        )
        if member is None:
            continue
        other = members[member] + name.removeprefix(member)
        got = renamed.get(name, name if name in b and name not in renamed.values() else None)
        if other in b and got != other:
            wrong.append((name, got, other))
    return wrong


@pytest.mark.parametrize("seed", SEEDS)
def test_a_port_with_one_fault_is_paired_and_the_fault_named(seed, tmp_path):
    ported = draw_port(seed)
    ported.record(tmp_path)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert not wrong_pairs(ported, found), ported
    assert {one.how for one in found.renamed} <= {"operations", "digest"}
    assert found.verdict == "unexpected", (ported, found.sentence)
    named = {one.place.name for one in found.origins if one.cls == "not_rounding"}
    assert not ported.blamed or ported.blamed in named, (ported, found.sentence)


@pytest.mark.parametrize("net", PORTS)
def test_a_port_with_other_parameters_is_paired_by_its_operations(net, tmp_path):
    ported = Ported(net, None, 1, same=False)
    ported.record(tmp_path)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert not wrong_pairs(ported, found)
    assert not [one for one in found.renamed if one.how == "guess"]
