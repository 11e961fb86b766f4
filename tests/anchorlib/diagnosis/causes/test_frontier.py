"""Hand-written truth: which of the records that differ is where it began."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.diagnosis.causes.frontier import frontier
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from anchorlib.record import BUFFER, Edges, Parent
from tests.anchorlib.diagnosis.histories import SIZE, History, compared, told
from tests.seeds import examples

EPS = 2.0**-23
ROUND, FAR = EPS, 1e-2


def chain(*names, passes=1, steps=1):
    """A run of whole steps through a chain, each with its optimizer."""
    run = History()
    run.chain(*names)
    for step in range(steps):
        for number in range(passes):
            run.passes(*names, step=step, pass_index=number)
        run.optimizer(*names, step=step)
    return run


def after(run, first, *, but=("input@value",), size=ROUND):
    """Changes of all records from the one numbered `first` on, in order of execution; the data
    stay the same."""
    found = {}
    for one in run.records[first:]:
        key = f"{one.name}@{one.kind} {one.step} {one.pass_index} {one.call} {one.rank}"
        if key.split(" ")[0] not in but:
            found[key] = size
    return found


def number(run, tensor, step=0, pass_index=0, rank=0):
    """The place of a record in its run."""
    name, _, kind = tensor.rpartition("@")
    return next(
        at
        for at, one in enumerate(run.records)
        if (one.name, one.kind, one.step, one.pass_index, one.rank)
        == (name, kind, step, pass_index, rank)
    )


def test_a_value_whose_parents_are_equal_is_the_origin_and_what_follows_receives():
    run = chain("input", "b", "c", "d", steps=2)
    found = compared(run, after(run, number(run, "c@value")))
    assert told(found) == ["rounding c@value 0 0"]
    assert (found.origins[0].ops, found.origins[0].parents) == (
        ("CBackward0",),
        ("b@value", "w_c@value"),
    )
    assert found.verdict == "suspect"
    assert found.first.place == found.origins[0].place
    assert found.first.identical_before == number(run, "c@value")


def test_the_gradient_of_an_operation_is_the_origin_although_its_tensor_is_older():
    run = chain("input", "b", "c", "d", steps=2)
    found = compared(run, after(run, number(run, "b@grad")))
    assert told(found) == ["rounding b@grad 0 0"]
    assert (found.origins[0].ops, found.origins[0].parents) == (("CBackward0",), ("c@grad",))


def test_a_residual_branch_receives_through_either_of_its_parents():
    run = History()
    run.chain("input", "b")
    run.made_of("c", "b")
    run.made_of("d", "b", "c")
    for tensor in ("input", "b", "c", "d"):
        run.add(f"{tensor}@value")
    for tensor in ("d", "c", "b"):
        run.add(f"{tensor}@grad")
    assert told(compared(run, {"c@grad": ROUND, "b@grad": ROUND})) == ["rounding c@grad 0 0"]
    assert told(compared(run, {"b@grad": ROUND})) == ["rounding b@grad 0 0"]
    found = compared(run, {"d@grad": ROUND, "b@grad": ROUND})
    assert told(found) == ["rounding d@grad 0 0"]


def test_calls_of_a_shared_layer_are_told_apart():
    run = History()
    run.chain("input")
    run.made_of("fc", "input", "w:w")
    run.made_of("fc", "fc#0", "w:w", call=1)
    for tensor, call in (("w", 0), ("input", 0), ("fc", 0), ("fc", 1)):
        run.add(f"{tensor}@value", call=call)
    run.add("fc@grad", call=1)
    run.add("fc@grad", call=0)
    found = compared(run, {"fc@value 0 0 1": FAR, "fc@grad": FAR})
    assert told(found) == ["not_rounding fc@value 0 0"]
    assert found.origins[0].place.call == 1
    assert found.origins[0].parents == ("fc@value", "w@value")


def test_a_micro_batch_does_not_explain_the_next():
    run = chain("input", "b", "c", passes=3)
    changes = {"b@grad 0 1": ROUND, "w_b@pass_grad 0 1": ROUND, "w_b@grad": ROUND}
    found = compared(run, changes | {"w_b@updated": ROUND, "w_b@opt.exp_avg": ROUND})
    assert told(found) == ["rounding b@grad 0 1"]


def test_parameters_that_sam_moved_between_passes_receive_from_every_gradient_of_the_pass_before():
    run = chain("input", "b", "c", passes=2)
    # w_c's own gradient is equal; the norm of all of them is not.
    changes = after(run, number(run, "b@grad"))
    found = compared(run, changes)
    assert told(found) == ["rounding b@grad 0 0"]


def test_what_moves_parameters_between_passes_may_be_the_origin():
    run = chain("input", "b", "c", passes=2)
    found = compared(run, after(run, number(run, "w_b@value", pass_index=1)))
    assert told(found) == ["rounding w_b@value 0 1"]


def test_clipping_makes_every_gradient_depend_on_all():
    run = chain("input", "b", "c")
    changes = {"w_b@pass_grad": ROUND, "w_b@grad": ROUND, "w_c@grad": ROUND}
    assert told(compared(run, changes)) == ["rounding w_b@pass_grad 0 0"]
    without = [one for one in run.records if one.kind != "pass_grad"]
    run.records = without
    changes = {"b@grad": ROUND, "w_b@grad": ROUND, "w_c@grad": ROUND}
    assert told(compared(run, changes)) == ["rounding b@grad 0 0"]


def test_an_optimizer_that_differs_is_the_origin_at_its_own_kinds():
    run = chain("input", "b", "c", steps=2)
    found = compared(run, after(run, number(run, "w_b@updated")))
    assert told(found) == ["rounding w_b@updated 0 0"]
    assert found.origins[0].parents == ("w_b@value", "w_b@grad", "w_b@opt.exp_avg")


def two_ranks():
    run = History()
    for rank in (0, 1):
        run.chain("input", "b", "c", rank=rank)
        run.passes("input", "b", "c", rank=rank)
    for rank in (0, 1):
        run.optimizer("input", "b", "c", rank=rank)
    return run


def test_all_reduced_gradients_receive_from_the_rank_where_it_began():
    run = two_ranks()
    changes = {"b@grad 0 0 0 1": ROUND, "w_b@pass_grad 0 0 0 1": ROUND}
    changes |= dict.fromkeys(("w_b@grad", "w_c@grad", "w_b@updated", "w_c@updated"), ROUND)
    found = compared(run, changes)
    assert told(found) == ["rounding b@grad 0 0"]
    assert found.origins[0].place.rank == 1
    assert found.origins[0].why == "on rank 1 alone: its data, device or placement"


def test_an_operation_that_differs_on_every_rank_is_one_origin():
    run = two_ranks()
    found = compared(run, {"b@grad": ROUND, "w_b@pass_grad": ROUND, "w_b@grad": ROUND})
    assert told(found) == ["rounding b@grad 0 0"]
    assert found.origins[0].amongst == 2
    assert found.origins[0].why == "on every rank: the operation itself"


def test_the_all_reduction_itself_may_be_the_origin():
    found = compared(two_ranks(), {"w_b@grad": ROUND})
    assert told(found) == ["rounding w_b@grad 0 0"]


def test_where_a_resumed_run_begins_the_state_is_not_taken_for_an_operation():
    run = chain("input", "b", steps=2)
    for at, one in enumerate(run.records):
        if one.step == 1:
            object.__setattr__(one.coordinates, "attempt", 1)
            run.records[at] = one
    run.edges[0] += [
        Edges(e.name, e.phase, 0, e.call, e.shape, 1, e.parents, e.ops, e.inputs, e.missing,
              attempt=1)
        for e in run.edges[0]
    ]  # fmt: skip
    found = compared(run, after(run, number(run, "w_b@value", 1), size=FAR))
    assert told(found) == ["window_start w_b@value 1 0"]
    assert "resumed" in found.origins[0].why


def test_sampled_steps_begin_with_a_window_start_and_go_on_as_receivers():
    run = History()
    run.chain("input", "b", "c")
    for step in (9, 19):
        run.passes("input", "b", "c", step=step)
        run.optimizer("input", "b", "c", step=step)
    found = compared(run, after(run, 0, size=FAR))
    assert told(found) == ["window_start w_b@value 9 0"]
    assert found.origins[0].amongst == 2
    assert found.verdict == "suspect"


def test_inside_a_sampled_step_an_operation_whose_parents_are_equal_is_still_told():
    run = History()
    run.chain("input", "b", "c")
    run.passes("input", "b", "c", step=9)
    assert told(compared(run, {"c@value": FAR, "c@grad": FAR})) == ["not_rounding c@value 9 0"]


def test_values_of_unrecorded_parameters_are_not_blamed_on_their_first_user_at_later_steps():
    run = History()
    run.chain("input", "b", "c")
    for step in range(2):
        run.passes("input", "b", "c", step=step, values=False)
    found = compared(run, after(run, number(run, "b@grad")))
    assert told(found) == ["rounding b@grad 0 0"]


def test_what_compiled_code_hides_is_explained_by_what_came_before():
    run = History()
    run.chain("input")
    for name in ("a", "b", "c"):
        run.made_of(name, "w:w", op="CompiledFunctionBackward")
    for name in ("w", "input", "a", "b", "c"):
        run.add(f"{name}@value")
    found = compared(run, {"b@value": ROUND, "c@value": ROUND})
    assert told(found) == ["rounding b@value 0 0"]
    assert "compiled" in found.origins[0].why


def test_edges_come_from_the_run_that_was_not_compiled():
    run = chain("input", "b", "c", "d")
    changes = {"b@value": ROUND, "d@value": ROUND}  # d's parents are equal, b's too
    a, b = run.table(), run.table(changes, "b")
    run.edges[0] = [
        Edges(e.name, "train", 0, 0, (SIZE,), 0, (Parent("w_b", None),),
              ("CompiledFunctionBackward",), ((-1,),))
        for e in run.edges[0]
    ]  # fmt: skip
    compiled = run.table()
    for one, two in ((compiled, b), (b, compiled), (a, b)):
        assert told(compare_tables(align(one, two))) == [
            "rounding b@value 0 0",
            "rounding d@value 0 0",
        ]


def test_running_statistics_receive_from_their_layers_input():
    run = History()
    run.chain("input", "b")
    run.edges[0].append(Edges("bn.running_mean", "train", 0, 0, (SIZE,), missing=(BUFFER,)))
    for step in range(2):
        run.add("bn.running_mean@value", step)
        run.passes("input", "b", step=step)
    changes = {"b@value": ROUND, "b@grad": ROUND, "bn.running_mean@value 1": FAR}
    assert told(compared(run, changes)) == ["rounding b@value 0 0"]
    assert told(compared(run, {"bn.running_mean@value 0": FAR})) == [
        "starts_unequal bn.running_mean@value 0 0"
    ]


def test_an_operation_that_reads_a_mask_receives_from_it():
    run = History()
    run.chain("input", "b")
    run.edges[0].append(
        Edges("c", "train", 0, 0, (SIZE,), 0, (Parent("b"),), ("MulBackward0",), ((-1, 0),))
    )
    for name in ("w_b", "input", "b", "mask", "c"):
        run.add(f"{name}@value")
    changes = {"mask@value": FAR, "c@value": FAR}
    assert told(compared(run, changes))[0].split()[1] == "mask@value"
    assert len(compared(run, changes).origins) == 1


def two_players():
    """Two optimizers in one step: d's pass and step, then a pass through d to g, and g's step."""
    run = History()
    run.chain("input", "d", "loss")
    for step in range(2):
        run.passes("input", "d", "loss", step=step)
        for kind in ("grad", "updated"):
            run.add(f"w_d@{kind}", step)
        run.passes("input", "d", "loss", step=step, pass_index=1)
        for kind in ("grad", "updated"):
            run.add(f"w_loss@{kind}", step)
    return run


def test_an_update_does_not_hang_on_the_passes_after_it():
    run = two_players()
    for kind in ("grad", "updated"):
        # The other's parameters are what they were: it has not stepped yet.
        changes = after(run, number(run, f"w_d@{kind}"), but=("input@value", "w_loss@value"))
        assert told(compared(run, changes)) == [f"rounding w_d@{kind} 0 0"]


def test_a_parameter_that_an_optimizer_moved_inside_the_step_receives_from_its_update():
    run = two_players()
    changes = {"w_d@updated 0": ROUND, "w_d@value 0 1": ROUND}
    assert told(compared(run, changes)) == ["rounding w_d@updated 0 0"]


def test_a_second_step_of_the_optimizer_hangs_on_what_the_first_one_left():
    run = History()
    run.chain("input", "b")
    for call in (0, 1):
        run.passes("input", "b", pass_index=call)
        for kind in ("grad", "updated", "opt.exp_avg"):
            run.add(f"w_b@{kind}", call=call)
    changes = {"w_b@opt.exp_avg": ROUND, "w_b@updated": ROUND}
    assert told(compared(run, changes)) == ["rounding w_b@updated 0 0"]
    changes = {"w_b@updated 0 0 1": ROUND, "w_b@opt.exp_avg 0 0 1": ROUND}
    found = compared(run, changes)
    assert told(found) == ["rounding w_b@updated 0 0"]
    assert found.origins[0].parents == ("w_b@grad", "w_b@updated", "w_b@opt.exp_avg")


def test_the_first_of_two_ranks_updates_does_not_hang_on_later_passes_of_the_other():
    run = History()
    for rank in (0, 1):
        run.chain("input", "d", rank=rank)
        run.passes("input", "d", rank=rank)
        for kind in ("grad", "updated"):
            run.add(f"w_d@{kind}", rank=rank)
        run.passes("input", "d", pass_index=1, rank=rank)
    changes = {"w_d@updated": ROUND, "w_d@value 0 1": ROUND, "d@value 0 1": ROUND}
    found = compared(run, changes)
    assert told(found) == ["rounding w_d@updated 0 0"]
    assert found.origins[0].amongst == 2


def carried(*, bits=True):
    """y is made of the input; a model is given something with the bits of y, or other ones."""
    run = History()
    run.chain("input")
    run.made_of("y", "input")
    run.edges[0].append(Edges("z.input", "train", 0, 0, (SIZE,), missing=("it has no graph",)))
    for name in ("input", "y"):
        run.add(f"{name}@value")
    run.add("z.input@value", raw=run.records[1].raw if bits else None)
    return run


def test_a_value_with_the_bits_of_an_earlier_record_in_both_runs_receives_from_it():
    run = carried()
    changes = {"y@value": ROUND, "z.input@value": ROUND}
    assert told(compared(run, changes)) == ["rounding y@value 0 0"]
    assert told(compared(carried(bits=False), changes)) == [
        "rounding y@value 0 0",
        "rounding z.input@value 0 0",
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_a_value_with_the_bits_of_a_record_in_one_run_alone_was_made_of_it(turned):
    run = carried()
    a, b = run.table(), run.table({"z.input@value": FAR}, "b")
    found = compare_tables(align(b, a) if turned else align(a, b))
    assert told(found) == ["not_rounding z.input@value 0 0"]
    assert found.origins[0].parents == ("y@value",)
    one, other = "BA" if turned else "AB"
    assert f"in {one} it is y bit for bit, in {other} it is not" in found.origins[0].why


def test_what_is_made_without_a_graph_of_equal_inputs_is_code_unless_it_is_other_data():
    run = carried()
    run.edges[0].append(Edges("spread", "train", 0, 0, (SIZE,), missing=("it has no graph",)))
    run.records = run.records[:1]
    run.add("spread@value")
    assert told(compared(run, {"spread@value": FAR})) == ["not_rounding spread@value 0 0"]
    other = np.random.default_rng(7).normal(size=SIZE).astype("<f4")
    assert told(compared(run, {"spread@value": other})) == ["starts_unequal spread@value 0 0"]


def test_no_gradient_comes_back_to_what_was_detached():
    run = History()
    run.chain("input")
    run.made_of("y", "input")
    run.edges[0] += [
        Edges("z", "train", 0, 0, (SIZE,), 0, (Parent("y"),), ("detach",), ((0,),), grad=False),
        Edges("u", "train", 0, 0, (SIZE,), 0, (Parent("z"),), ("TanhBackward0",), ((-1,),)),
        Edges("v", "train", 0, 0, (SIZE,), 0, (Parent("y"),), ("ExpBackward0",), ((-1,),)),
    ]
    for tensor in ("input@value", "y@value", "u@value", "v@value", "u@grad", "v@grad", "y@grad"):
        run.add(tensor)
    found = compared(run, {"u@grad": ROUND, "y@grad": ROUND})
    assert told(found) == ["rounding u@grad 0 0", "rounding y@grad 0 0"]
    assert found.origins[1].parents == ("v@grad",)


@pytest.mark.slow
@given(st.integers(0, 40), st.sets(st.integers(0, 40), min_size=1))
def test_the_first_record_of_a_rank_that_differs_is_always_an_origin(first, rest):
    run = two_players()
    at = {first, *(number for number in rest if number > first)}
    keys = [
        f"{one.name}@{one.kind} {one.step} {one.pass_index}"
        for place, one in enumerate(run.records)
        if place in at
    ]
    found = frontier(align(run.table(), run.table(dict.fromkeys(keys, ROUND), "b")))
    assert first in found.alignment.a.order[found.origins]


@st.composite
def worlds(draw):
    """A random directed graph of values over two steps, and what differs at first."""
    count = draw(st.integers(2, 6))
    names = [f"t{one}" for one in range(count)]
    run = History()
    run.edges[0] = [Edges("t0", "train", 0, 0, (SIZE,), missing=("it has no graph",))]
    above = {"t0": []}
    for at in range(1, count):
        above[names[at]] = draw(
            st.lists(st.sampled_from(names[:at]), min_size=1, max_size=3, unique=True)
        )
        run.made_of(names[at], *above[names[at]])
    for name in names:
        run.add(f"{name}@value")
    planted = draw(st.sets(st.sampled_from(names[1:]), min_size=1, max_size=2))
    differs = set(planted)
    for name in names:
        if differs & set(above[name]):
            differs.add(name)
    truth = {name for name in planted if not differs & set(above[name])}
    return run, differs, truth


@pytest.mark.slow
@given(worlds())
def test_origins_are_exactly_the_planted_differences_that_no_parent_explains(world):
    run, differs, truth = world
    changes = {f"{name}@value": ROUND for name in differs}
    found = frontier(align(run.table(), run.table(changes, "b")))
    a = found.alignment.a
    assert {a.tensors[a.tensor[row]].name for row in found.origins} == truth


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(worlds())
def test_swapping_the_runs_keeps_place_classes_and_verdict(world):
    run, differs, _ = world
    a, b = run.table(), run.table({f"{name}@value": FAR for name in differs}, "b")
    one, two = compare_tables(align(a, b)), compare_tables(align(b, a))
    assert (one.verdict, one.first, told(one)) == (two.verdict, two.first, told(two))


@pytest.mark.slow
@given(worlds())
def test_a_run_is_identical_to_itself(world):
    run, _, _ = world
    found = compare_tables(align(run.table(), run.table(run="b")))
    assert (found.verdict, found.first, found.origins) == ("identical", None, ())
    assert found.counts.identical == found.counts.matched == len(run.records)


@pytest.mark.parametrize("steps", [1, 40])
def test_parents_are_resolved_once_for_all_steps_of_a_layout(steps):
    run = chain("input", "b", "c", steps=steps)
    found = frontier(align(run.table(), run.table(after(run, 1), "b")))
    assert len(found.layouts) == 1
    assert np.array_equal(found.blocks.step, np.arange(steps))


def test_a_sharded_gradient_receives_from_other_ranks_in_every_step():
    """Placements are recorded where they change: in the first step alone."""
    run = History()
    run.add("w_b:placements@value")
    for step in range(2):
        for rank in (0, 1):
            if not step:
                run.chain("input", "b", rank=rank)
            run.passes("input", "b", rank=rank, step=step)
            run.optimizer("input", "b", rank=rank, step=step)
    changes = {"b@value 1 0 0 1": ROUND, "w_b@pass_grad 1": ROUND}
    found = compared(run, changes)
    assert [one.place.name for one in found.origins] == ["b"], told(found)
    run.records = [one for one in run.records if "placements" not in one.name]
    assert len(compared(run, changes).origins) == 2
