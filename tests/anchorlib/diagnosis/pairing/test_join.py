"""Which record stands for which: beside a join of plain dictionaries, and on planted changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.diagnosis.pairing.alignment import Alignment, Renaming
from anchorlib.diagnosis.pairing.identity.identity import mode_class
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.tables.table import Table
from anchorlib.record import Edges, Parent, Record
from tests.anchorlib.diagnosis.strategies import again, records
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import floats, record

Identity = tuple[Any, ...]


def identities(
    of: Table, names: Mapping[str, str] | None = None, offset: int = 0
) -> dict[Identity, int]:
    """The row of each identity, one by one: where two modes have it, one with values."""
    found: dict[Identity, int] = {}
    seen: Counter[Identity] = Counter()
    for row in range(len(of)):
        tensor = of.tensors[of.tensor[row]]
        name = tensor.name if names is None else names.get(tensor.name)
        numbers = (of.step[row] + offset, of.pass_index[row], of.call[row])
        place = (tensor.rank, of.phases[of.phase[row]], *map(int, numbers), tensor.kind)
        own = (*place, tensor.name, tensor.mode)
        shown = (name, None if name is not None else tensor.name)
        key = (*place, shown, mode_class(tensor.mode), seen[own])
        seen[own] += 1
        if key not in found or preference(of, row) < preference(of, found[key]):
            found[key] = row
    return found


def preference(of: Table, row: int) -> tuple[bool, str]:
    return not of.kept[row], of.tensors[of.tensor[row]].mode


def stands_for(found: Alignment) -> dict[str, str]:
    """A's name -> B's, as the alignment took them."""
    renamed = {one.a: one.b for one in found.renamed}
    theirs = {tensor.name for tensor in found.b.tensors} - set(renamed.values())
    ours = {tensor.name for tensor in found.a.tensors} - set(renamed)
    return {**renamed, **{name: name for name in ours & theirs}}


def check(found: Alignment) -> None:
    """The alignment is what plain dictionaries say, given its renamings and offset."""
    one = identities(found.a, stands_for(found), found.step_offset)
    two = identities(found.b)
    pairs = sorted((row, two[key]) for key, row in one.items() if key in two)
    assert list(zip(found.a_row.tolist(), found.b_row.tolist(), strict=True)) == pairs
    assert sorted(found.only_a.tolist()) == sorted(set(one.values()) - {a for a, _ in pairs})
    assert sorted(found.only_b.tolist()) == sorted(set(two.values()) - {b for _, b in pairs})
    bits = [content(found.a, a) == content(found.b, b) for a, b in pairs]
    assert found.equal.tolist() == bits


def content(of: Table, row: int) -> tuple[Any, ...]:
    return of.dtypes[of.dtype[row]], of.shapes[of.shape[row]], tuple(of.digest[row].tolist())


@pytest.mark.slow
@given(records(), records())
def test_joining_columns_is_joining_dictionaries(a: list[Record], b: list[Record]) -> None:
    check(align(table(a), table(b)))


@pytest.mark.slow
@given(records())
def test_a_run_is_equal_to_itself(made: list[Record]) -> None:
    found = align(table(made), table(made))
    assert (found.a_row == found.b_row).all()
    assert found.equal.all()
    assert not len(found.only_a)
    assert not len(found.only_b)
    assert (found.step_offset, found.renamed) == (0, ())


@pytest.mark.slow
@given(records(), records(), st.randoms(use_true_random=False))
def test_order_of_arrival_decides_nothing(a: list[Record], b: list[Record], random: Any) -> None:
    # A series of several records at one place has but its order to tell them apart.
    b = list({(r.name, r.kind, r.mode, r.rank, r.coordinates): r for r in b}.values())
    a = list({(r.name, r.kind, r.mode, r.rank, r.coordinates): r for r in a}.values())
    known = {r.name for r in a} & {r.name for r in b}
    a, b = ([r for r in side if r.name in known] for side in (a, b))
    mixed = [again(one, order=n) for n, one in enumerate(random.sample(b, len(b)))]
    found, other = align(table(a), table(b)), align(table(a), table(mixed))
    assert described(found) == described(other)


def described(found: Alignment) -> set[tuple[Any, ...]]:
    pairs = zip(found.a_row.tolist(), found.b_row.tolist(), found.equal.tolist(), strict=True)
    return {(a, *content(found.b, b), equal) for a, b, equal in pairs}


def run(
    names: Iterable[str], steps: Iterable[int] = range(4), seed: int = 0, **options: Any
) -> list[Record]:
    """A run of tensors that have other bits at every step, all of one shape."""
    made: list[Record] = []
    for step in steps:
        for number, name in enumerate(names):
            raw = np.random.default_rng((seed, step, number)).standard_normal(3).astype("<f4")
            made.append(record(name, step, raw, order=len(made), **options))
    return made


def test_a_step_that_is_missing_is_a_result() -> None:
    a, b = run(["x", "y"]), run(["x", "y"], [0, 1, 3])
    found = align(table(a), table(b))
    assert found.equal.all()
    assert found.a.step[found.only_a].tolist() == [2, 2]
    assert not len(found.only_b)


@pytest.mark.parametrize("change", [{"rank": 1}, {"phase": "test"}, {"call": 1}, {"kind": "value"}])
def test_ranks_phases_calls_and_kinds_never_mix(change: dict[str, Any]) -> None:
    a = run(["x", "y"])
    found = align(table(a), table([again(one, **change) for one in a]))
    assert len(found) == 0
    assert len(found.only_a) == len(found.only_b) == len(a)


def test_forwards_in_eval_mode_are_those_of_training_where_each_run_has_one_of_them_alone() -> None:
    a = run(["x", "y"])
    b = [again(one, phase="eval") if one.step > 1 else one for one in a]
    for one, two, since in ((a, b, (None, 2)), (b, a, (2, None))):
        found = align(table(one), table(two))
        assert len(found) == len(a)
        assert (found.equal.all(), found.eval_since) == (True, since)
    # Beside the training there may be evaluations, of the same tensors at the same steps.
    both = [*a, *(again(one, phase="eval", order=one.order + 100) for one in a)]
    found = align(table(both), table(a))
    assert (len(found), len(found.only_a), found.eval_since) == (len(a), len(a), (None, None))


def test_a_pass_in_eval_mode_is_the_pass_of_training_that_the_other_run_made() -> None:
    """Runs count passes of evaluation apart: the record of training that follows tells the pass."""
    a, b = [], []
    for step in range(2):
        for pass_index, name in [(0, "x"), (0, "loss"), (1, "x"), (1, "loss")]:
            (one,) = run([name], [step], seed=pass_index, kind="value")
            a.append(again(one, pass_index=pass_index, order=len(a)))
            moved = {"phase": "eval", "pass_index": 0} if name == "x" and pass_index else {}
            b.append(again(a[-1], **moved))
    for one, two, since in ((a, b, (None, 0)), (b, a, (0, None))):
        found = align(table(one), table(two))
        assert (len(found), bool(found.equal.all()), found.eval_since) == (len(a), True, since)
    # An evaluation beside a pass of training that both made is none of theirs.
    more = [*a, again(a[2], phase="eval", pass_index=0, order=100)]
    found = align(table(a), table(more))
    assert (len(found), len(found.only_b), found.eval_since) == (len(a), 1, (None, None))


def test_several_forwards_of_a_step_in_eval_mode_are_taken_in_turn() -> None:
    """One acts in eval mode, one trains, one values what comes after without gradients."""
    phases = ("eval", "train", "no_grad")
    a, b = [], []
    for step in range(2):
        for turn, phase in enumerate(phases):
            (one,) = run(["x"], [step], seed=turn, kind="value")
            a.append(again(one, phase=phase, order=len(a)))
            b.append(again(a[-1], phase="eval", pass_index=turn))
        (one,) = run(["loss"], [step], kind="value")
        a.append(again(one, order=len(a)))
        b.append(a[-1])
    for one, two, since in ((a, b, (None, 0)), (b, a, (0, None))):
        found = align(table(one), table(two))
        assert (len(found), bool(found.equal.all()), found.eval_since) == (len(a), True, since)
    # One forward more, or none that the other run made in training: nothing tells the turns.
    fewer = [one for one in b if (one.step, one.pass_index) != (1, 2)]
    found = align(table(a), table(fewer))
    assert (len(found.only_a), len(found.only_b), found.eval_since) == (2, 1, (None, 0))
    idle = [one for one in a if one.phase != "no_grad"]
    acting = [*idle, *(again(a[2], phase="eval", pass_index=1, step=n, order=90) for n in (0, 1))]
    found = align(table(a), table(acting))
    assert (len(found.only_a), len(found.only_b), found.eval_since) == (2, 2, (None, None))


def test_all_forwards_of_a_step_in_eval_mode_are_taken_in_turn_where_some_were_before() -> None:
    """A model is attacked in eval mode, twice, before it trains on two batches in one pass."""
    a, b = [], []
    for step in range(2):
        for turn, (phase, pass_index, call) in enumerate(
            [("eval", 0, 0), ("eval", 1, 0), ("train", 0, 0), ("train", 0, 1)]
        ):
            for kind in ("value", "grad"):
                (one,) = run(["x"], [step], seed=turn, kind=kind)
                place = {"phase": phase, "pass_index": pass_index, "call": call}
                a.append(again(one, **place, order=len(a)))
                b.append(again(a[-1], phase="eval", pass_index=turn, call=0))
        (one,) = run(["loss"], [step], kind="value")
        a.append(again(one, order=len(a)))
        b.append(a[-1])
    for one, two, since in ((a, b, (None, 0)), (b, a, (0, None))):
        found = align(table(one), table(two))
        assert (len(found), bool(found.equal.all()), found.eval_since) == (len(a), True, since)
    # One forward more: nothing tells which one the other run left out.
    fewer = [one for one in b if (one.step, one.pass_index) != (1, 3) or one.kind == "grad"]
    found = align(table(a), table(fewer))
    assert len(found.only_a) > 1


def test_an_evaluation_where_nothing_is_trained_stays_by_itself() -> None:
    a = run(["x"], kind="value")
    b = [again(one, phase="eval") if one.step == 3 else one for one in a]
    found = align(table(a), table(b))
    assert (len(found), len(found.only_b), found.eval_since) == (3, 1, (None, None))


def test_a_sum_stands_for_a_sum_of_the_same_window_alone() -> None:
    sums = [run(["x"], mode=mode) for mode in ("sum", "sum:window=2", "all")]
    for one in sums:
        for two in sums:
            found = align(table(one), table(two))
            assert len(found) == (4 if one is two else 0)


def test_modes_that_record_the_tensor_itself_stand_for_each_other() -> None:
    every = run(["x"], mode="all")
    for other in (
        run(["x"], [1, 3], mode="every_n:2"),
        run(["x"], [3], mode="final:window=4"),
        run(["x"], mode="summary"),
    ):
        found = align(table(every), table(other))
        assert len(found) == len(other)
        assert found.equal.all()


def test_of_two_modes_at_one_place_the_record_with_values_is_taken() -> None:
    both = run(["x"], mode="summary")
    both += [again(one, order=one.order + 50) for one in run(["x"], [1, 3], mode="every_n:2")]
    found = align(table(both), table(run(["x"])))
    kept = found.a.kept[found.a_row]
    assert sorted(found.a.step[found.a_row[kept]].tolist()) == [1, 3]
    assert len(found) == 4
    assert not len(found.only_a)


# -- names


WRAPPERS = ["module.{}", "_orig_mod.{}", "module._orig_mod.{}", "student.{}", "a.b.c.{}"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_wrappers_and_prefixes_add_is_seen_through(wrapper: str) -> None:
    names = ["fc1", "fc1.weight", "block.0.fc", "block.1.fc", "output"]
    wrapped = [wrapper.format(name) for name in names]
    for a, b in ((names, wrapped), (wrapped, names)):
        found = align(table(run(a)), table(run(b, seed=1)))
        assert found.renamed == tuple(Renaming(x, y, "wrapper") for x, y in zip(a, b, strict=True))
        assert len(found) == len(names) * 4


def test_an_exact_name_is_never_taken_for_another() -> None:
    a = run(["fc", "module.fc"])
    assert align(table(a), table(a)).renamed == ()
    found = align(table(a), table(run(["fc"])))
    assert found.renamed == ()
    assert {found.a.tensors[found.a.tensor[row]].name for row in found.only_a} == {"module.fc"}


def test_of_two_prefixes_that_would_do_none_is_taken() -> None:
    names = ["fc1", "fc2"]
    a = [f"{side}.{name}" for side in ("student", "teacher") for name in names]
    assert align(table(run(a)), table(run(names, seed=1))).renamed == ()


def test_the_users_map_has_the_last_word() -> None:
    a, b = run(["x", "y", "z"]), run(["x", "y", "w"], seed=1)
    swapped = align(table(a), table(b), names={"x": "y", "y": "x", "z": "w", "none": "x"})
    assert {(one.a, one.b) for one in swapped.renamed} == {("x", "y"), ("y", "x"), ("z", "w")}
    assert {one.how for one in swapped.renamed} == {"map"}
    # Two for one: the later one; what is left over stands for nothing.
    doubled = align(table(a), table(run(["x", "y"], seed=1)), names={"y": "x", "z": "x"})
    assert [(one.a, one.b) for one in doubled.renamed] == [("z", "x")]
    check(swapped)
    check(doubled)


def chain(names: list[str], ops: list[str]) -> dict[int, list[Edges]]:
    """Edges of a chain of values, each made of the one before by one operation and a weight."""
    return {
        0: [
            Edges(
                name,
                "train",
                0,
                0,
                (3,),
                parents=parents_of(names, n),
                ops=(ops[n],),
                inputs=((-1,),),
            )
            for n, name in enumerate(names)
        ]
    }


def test_a_prefix_that_both_runs_have_is_none_of_one_run_alone() -> None:
    """A model and its average, one operation of both written otherwise."""
    names = ["fc1", "act1", "fc2", "act2", "fc3"]
    both = [*names, *(f"ema.{name}" for name in names)]
    act = ["SiluBackward0", "MulBackward0"]
    one, two = (
        table(
            run(both, seed=seed),
            edges={0: [one for own in (names, both[5:]) for one in chain(own, ops)[0]]},
        )
        for seed, ops in enumerate(["Addmm", op, "Addmm", op, "Addmm"] for op in act)
    )
    found = align(one, two)
    assert found.renamed == ()
    assert not len(found.only_a)


def parents_of(names: list[str], n: int) -> tuple[Parent, ...]:
    weight = Parent(f"{names[n]}.w", call=None)
    return (Parent(names[n - 1]), weight) if n else (weight,)


def test_names_are_found_again_by_the_sequence_of_operations() -> None:
    ops = ["AddmmBackward0", "TanhBackward0", "AddmmBackward0", "TanhBackward0", "SumBackward0"]
    old, new = ["fc0", "tanh0", "fc1", "tanh1", "loss"], ["enc", "act", "dec", "act2", "loss"]
    tables = [
        table(run([*(f"{name}.w" for name in names), *names], seed=n), edges=chain(names, ops))
        for n, names in enumerate((old, new))
    ]
    found = align(*tables)
    wanted = {(x, y) for x, y in zip(old, new, strict=True) if x != y}
    wanted |= {(f"{x}.w", f"{y}.w") for x, y in wanted}
    assert {(one.a, one.b) for one in found.renamed} == wanted
    assert {one.how for one in found.renamed} == {"operations"}
    check(found)


def test_what_is_beside_a_missing_layer_stays_with_its_neighbours() -> None:
    ops = ["AddmmBackward0"] * 3
    old, new = ["fc0", "fc1", "fc2"], ["a", "b", "c"]
    weights = [[f"{name}.w" for name in names] for names in (old, new[1:])]
    one = table(run([*weights[0], *old]), edges=chain(old, ops))
    two = table(run([*weights[1], *new[1:]], seed=1), edges=chain(new[1:], ops[1:]))
    renamed = {(one.a, one.b) for one in align(one, two).renamed}
    # The first and the last are told by what they lack, and their weights by them.
    assert renamed == {("fc0", "b"), ("fc0.w", "b.w"), ("fc2", "c"), ("fc2.w", "c.w")}


def test_what_several_names_fit_alike_tells_nothing() -> None:
    def heads(names: list[str]) -> dict[int, list[Edges]]:
        return {
            0: [
                Edges(n, "train", 0, 0, (3,), 0, (Parent("x"),), ("TBackward0",), ((-1,),))
                for n in names
            ]
        }

    old, new = ["q", "k", "v"], ["one", "two"]
    one = table(run(["x", *old]), edges=heads(old))
    assert align(one, table(run(["x", *new], seed=1), edges=heads(new))).renamed == ()
    three = ["one", "two", "three"]
    found = align(one, table(run(["x", *three], seed=1), edges=heads(three)))
    assert [(r.a, r.b) for r in found.renamed] == list(zip(old, three, strict=True))


def test_equal_bits_at_the_first_step_tell_a_name() -> None:
    a, b = run(["x", "old", "older"]), run(["x", "old", "older"])
    b = [again(r, name={"old": "new", "older": "newer"}.get(r.name, r.name)) for r in b]
    # Later steps differ; a constant is everyone's.
    zeros = [record(n, 0, floats(0, 0, 0), order=90) for n in ("bias", "bias2")]
    b = [again(r, raw=None) for r in b]
    found = align(table([*a, zeros[0]]), table([*b, zeros[1]]))
    assert set(found.renamed) == {
        Renaming("old", "new", "digest"),
        Renaming("older", "newer", "digest"),
    }


def test_a_guess_is_marked_as_one() -> None:
    a = [record("x", 0, floats(1, 2), order=0), record("old", 0, floats(30, 40, 50), order=1)]
    b = [record("x", 0, floats(1, 2), order=0), record("new", 0, floats(30, 40, 50.5), order=1)]
    found = align(table(a), table(b))
    assert found.renamed == (Renaming("old", "new", "guess"),)
    assert found.guessed.tolist() == [False, True]
    far = [*b[:1], record("new", 0, floats(30, 40, 60), order=1)]
    assert align(table(a), table(far)).renamed == ()
    two = [*b, record("newer", 0, floats(30, 40, 50.25), order=2)]
    assert align(table(a), table(two)).renamed == ()


# -- steps


@pytest.mark.parametrize("offset", [-2, 1, 5, 1000])
def test_steps_that_are_numbered_differently_are_found_by_their_bits(offset: int) -> None:
    a = run(["input", "x"], range(8))
    b = [again(one, step=one.step + offset) for one in a if one.step >= max(0, -offset)]
    # All but the input differ.
    b = [one if one.name == "input" else again(one, **other(one)) for one in b]
    found = align(table(a), table(b))
    assert found.step_offset == offset
    assert len(found) == len(b)
    check(found)


def other(one: Record) -> dict[str, Any]:
    assert one.raw is not None
    made = record(one.name, 0, one.raw + np.float32(one.step + 1))
    return {"raw": made.raw, "summary": made.summary}


def test_a_resumed_run_is_joined_with_the_end_of_the_other() -> None:
    a = run(["input", "x"], range(10))
    b = [again(one, step=one.step - 6, order=one.order) for one in a if one.step >= 6]
    found = align(table(a), table(b))
    assert (found.step_offset, len(found)) == (-6, len(b))
    assert found.equal.all()


def test_data_in_another_order_is_no_offset() -> None:
    a = run(["input"], range(6))
    shuffled = dict(zip(range(6), [3, 5, 1, 0, 2, 4], strict=True))
    b = [again(one, step=shuffled[one.step], order=n) for n, one in enumerate(a)]
    assert align(table(a), table(b)).step_offset == 0


def test_bits_that_stay_the_same_say_nothing_of_steps() -> None:
    frozen = [record("x", step, floats(1, 2, 3), order=step) for step in range(6)]
    later = [again(one, step=one.step + 100) for one in frozen]
    found = align(table(frozen), table(later))
    assert (found.step_offset, len(found)) == (0, 0)
    found = align(table(frozen), table([again(one, step=one.step + 2) for one in frozen]))
    assert (found.step_offset, len(found)) == (0, 4)


def test_a_counter_says_nothing_of_steps() -> None:
    a, b = run(["x"], range(8)), run(["x"], range(8), seed=1)
    for side, start in ((a, 0), (b, 3)):
        side += [
            record("counter", step, floats(step + start), order=100 + step) for step in range(8)
        ]
    assert align(table(a), table(b)).step_offset == 0


def test_an_offset_is_found_where_two_modes_recorded_each_step() -> None:
    a = run(["x"], range(4)) + [
        again(one, order=one.order + 50) for one in run(["x"], range(4), mode="summary")
    ]
    b = [again(one, step=one.step + 9) for one in a]
    found = align(table(a), table(b))
    assert (found.step_offset, len(found)) == (9, 4)
    assert found.equal.all()


def sequential(names: list[str], whole: str, width: int) -> Table:
    """A model of two layers; `whole`: a name for what the second gives, or none."""
    layers = [f"{name}{end}" for name in names for end in (".weight", "")]
    shown = [*layers, *([whole] if whole else [])]
    made: list[Record] = []
    for step in range(2):
        for number, name in enumerate(shown):
            seed = layers.index(names[-1]) if name == whole else number
            size = 5 if name == names[-1] or name == whole else width
            raw = np.random.default_rng((step, seed)).standard_normal(size).astype("<f4")
            made.append(record(name, step, raw, order=len(made)))
    told = [
        Edges(name, "train", 0, 0, (width,), 0, (Parent(f"{name}.weight", None),), (op,), ((-1,),))
        for name, op in zip(names, ("AddmmBackward0", "TanhBackward0"), strict=True)
    ]
    if whole:
        told.append(Edges(whole, "train", 0, 0, (5,), 0, (Parent(names[-1]),), ()))
    return table(made, edges={0: told})


@pytest.mark.parametrize("width", [5, 7])
@pytest.mark.parametrize("turned", [False, True])
def test_a_model_in_a_sequential_is_not_its_first_layer(width: int, turned: bool) -> None:
    sides = [sequential(["0", "1"], "", width), sequential(["0.0", "0.1"], "0", width)]
    found = align(*(sides[::-1] if turned else sides))
    renamed = {(one.b, one.a) if turned else (one.a, one.b) for one in found.renamed}
    assert renamed == {(name, f"0.{name}") for name in ("0", "1", "0.weight", "1.weight")}
    assert found.equal.all()
    assert len(found) == 8


def test_equal_names_that_cannot_be_the_same_still_meet_where_nothing_fits_better() -> None:
    a = [record("fc", 0, floats(1, 2)), record("x", 0, floats(1, 2, 3), order=1)]
    b = [record("fc", 0, floats(1, 2, 3)), record("x", 0, floats(1, 2, 3), order=1)]
    found = align(table(a), table(b))
    assert (found.renamed, found.equal.tolist()) == ((), [False, True])


def test_pairs_that_rest_on_a_guess_are_left_out_unless_there_is_nothing_else() -> None:
    a = [record("x", 0, floats(1, 2), order=0), record("old", 0, floats(30, 40, 50), order=1)]
    b = [record("x", 0, floats(1, 2), order=0), record("new", 0, floats(30, 40, 50.5), order=1)]
    found = align(table(a), table(b)).settled()
    assert (found.equal.tolist(), found.only_a.tolist(), found.only_b.tolist()) == (
        [True],
        [1],
        [1],
    )
    alone = align(table(a[1:]), table(b[1:])).settled()
    assert (alone.equal.tolist(), alone.guessed.tolist()) == ([False], [True])
