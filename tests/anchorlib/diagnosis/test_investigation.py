"""What a comparison says of hand-made runs: classes, verdicts, sentences."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from anchorlib.diagnosis import sections
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from anchorlib.record import Edges, Parent
from tests.anchorlib.diagnosis.causes.test_frontier import FAR, ROUND, after, chain, number
from tests.anchorlib.diagnosis.histories import SIZE, History, compared, off, over, told

NAMES = ("input", "b", "c", "d")


def bits(dtype, size=SIZE, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(dtype)


def one_operation(*, dtype="float32", raw=None, kind="value"):
    """b = f(a), recorded once."""
    run = History()
    run.chain("input")
    run.made_of("b", "input")
    run.add("input@value")
    run.add(f"b@{kind}", raw=raw, dtype=dtype)
    return run


@pytest.mark.parametrize(("size", "cls"), [(2, "rounding"), (4000, "not_rounding")])
def test_an_error_of_a_few_eps_is_rounding(size, cls):
    found = compared(one_operation(), {"b@value": size * 2.0**-23})
    assert told(found) == [f"{cls} b@value 0 0"]
    assert found.verdict == ("suspect" if cls == "rounding" else "unexpected")


@pytest.mark.parametrize(("size", "cls"), [(0.25, "rounding"), (4, "not_rounding")])
def test_low_precision_may_round_by_less_than_an_eps(size, cls):
    raw = (bits("<f4").view("<u4") >> 16).astype("<u2")
    moved = off((raw.astype("<u4") << 16).view("<f4"), size * 2.0**-7)
    there = ((moved.view("<u4") + 0x8000) >> 16).astype("<u2")
    if size < 1:
        there = raw.copy()
        there[:4] += 1
    found = compared(one_operation(dtype="bfloat16", raw=raw), {"b@value": there})
    assert told(found) == [f"{cls} b@value 0 0"]


def test_a_float32_gradient_that_was_computed_in_bfloat16_is_judged_in_its_eps():
    raw = (bits("<f4").view("<u4") & 0xFFFF0000).view("<f4")
    there = raw.copy()
    there.view("<u4")[:8] += 1 << 16
    found = compared(one_operation(raw=raw), {"b@value": there})
    assert found.origins[0].measure.error_eps > 1000
    assert found.origins[0].cls == "rounding"


def test_a_result_rounded_to_bfloat16_in_one_float32_run_alone_is_not_rounding():
    raw = bits("<f4")
    there = (raw.view("<u4") & 0xFFFF0000).view("<f4")
    found = compared(one_operation(raw=raw), {"b@value": there})
    assert told(found) == ["not_rounding b@value 0 0"]


def test_nan_in_one_run_alone_is_a_divergence_of_its_own():
    raw = bits("<f4")
    there = raw.copy()
    there[3] = np.nan
    found = compared(one_operation(raw=raw), {"b@value": there})
    assert told(found) == ["nonfinite b@value 0 0"]
    assert found.verdict == "unexpected"
    assert "NaN" in found.sentence
    assert "0 eps where both are finite, " in str(found)
    assert "ulp" not in str(found)
    json.loads(json.dumps(found.to_dict(), allow_nan=False))


def overflowing():
    run = chain(*NAMES, steps=2)
    changes = after(run, number(run, "c@grad"))
    there = bits("<f4")
    there[0] = np.inf
    return run, changes, {"d@value 1": there}


def test_nan_whose_inputs_differ_by_rounding_is_told_beside_the_origin():
    run, changes, more = overflowing()
    found = compared(run, over(changes, more))
    assert told(found) == ["rounding c@grad 0 0", "nonfinite d@value 1 0"]
    assert found.verdict == "unexpected"
    assert "at step 1, pass 0: d" in found.sentence


def test_nan_that_noise_runs_have_too_is_noise():
    run, changes, more = overflowing()
    noise = over(after(run, 0), more)
    assert told(compared(run, over(changes, more), [noise])) == ["rounding c@grad 0 0"]


def test_parameters_that_differ_before_the_first_step_are_an_unequal_start():
    run = chain(*NAMES)
    found = compared(run, after(run, 0))
    assert told(found) == ["starts_unequal w_b@value 0 0"]
    assert (found.origins[0].amongst, found.origins[0].parents) == (3, ())
    assert found.verdict == "suspect"
    assert "before anything was computed" in found.sentence


def test_an_input_that_differs_at_a_later_step_is_an_unequal_start():
    run = chain(*NAMES, steps=3)
    found = compared(run, after(run, number(run, "input@value", 2), but=(), size=FAR))
    assert told(found) == ["starts_unequal input@value 2 0"]
    assert found.verdict == "suspect"


@pytest.mark.slow
def test_noise_need_not_cover_an_unequal_start():
    run = chain(*NAMES, steps=3)
    noise = [after(run, 0)] * 2
    assert compared(run, after(run, 0, size=FAR), noise).verdict == "suspect"
    assert compared(run, after(run, 0), noise).verdict == "expected"


def routed():
    """input → gate → picked (integers, of which autograd knows nothing) → experts."""
    run = History()
    run.chain("input", "gate")
    run.edges[0] += [
        Edges("picked", "train", 0, 0, (SIZE,), missing=("it has no graph",)),
        Edges("experts", "train", 0, 0, (SIZE,), 0, (Parent("gate"),), ("Mul0",), ((-1, 0),)),
    ]
    for tensor in ("w_gate", "input", "gate"):
        run.add(f"{tensor}@value")
    run.add("picked@value", raw=np.arange(SIZE), dtype="int64")
    run.add("experts@value")
    return run


def test_a_flip_whose_inputs_differ_is_a_receiver_and_is_noted():
    changes = {"gate@value": ROUND, "picked@value": 1, "experts@value": FAR}
    found = compared(routed(), changes)
    assert told(found) == ["rounding gate@value 0 0"]
    assert any("picked flips at step 0, pass 0" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("norm.num_batches_tracked", "norm.num_batches_tracked counts calls: 6 in A, 7 in B at"),
        ("norm.num_batches", "norm.num_batches flips at step 0, pass 0: integers decided"),
    ],
)
def test_a_count_of_calls_is_no_decision(name, note):
    run = History()
    run.chain("input", "gate")
    run.edges[0].append(Edges(name, "train", 0, 0, (), 0, (Parent("gate"),), ("Add0",), ((-1, 0),)))
    for tensor in ("w_gate", "input", "gate"):
        run.add(f"{tensor}@value")
    run.add(f"{name}@value", raw=np.array(6), dtype="int64")
    found = compared(run, {"gate@value": ROUND, f"{name}@value": 1})
    assert [line for line in found.notes if line.startswith(note)]
    assert sum("flips" in line or "counts" in line for line in found.notes) == 1


def test_a_flip_whose_inputs_are_equal_is_no_rounding():
    found = compared(routed(), {"picked@value": 1, "experts@value": FAR})
    assert told(found) == ["not_rounding picked@value 0 0"]
    assert found.origins[0].measure.share_differing == 1
    assert "integers do not round" in found.origins[0].why


def test_shapes_that_differ_are_no_rounding():
    run = one_operation()
    found = compared(run, {"b@value": bits("<f4", SIZE + 1)})
    assert told(found) == ["not_rounding b@value 0 0"]
    assert "shapes" in found.origins[0].why


def zero_by_theory(scale=1e-9):
    """The gradient of a bias before a batch norm: what rounding leaves of a sum of zero."""
    run = History()
    run.edges[0] = [Edges("input", "train", 0, 0, (SIZE,), missing=("it has no graph",))]
    run.made_of("fc", "input", "w:bias")
    run.made_of("norm", "fc")
    for tensor in ("bias", "input", "fc", "norm"):
        run.add(f"{tensor}@value")
    run.add("norm@grad")
    run.add("fc@grad")
    run.add("bias@pass_grad", raw=(bits("<f4") * scale).astype("<f4"))
    return run


def test_a_gradient_that_is_zero_by_theory_is_rounding_although_it_differs_altogether():
    there = (bits("<f4", seed=1) * 1e-8).astype("<f4")
    found = compared(zero_by_theory(), {"bias@pass_grad": there})
    assert found.origins[0].measure.error_eps > 1e6
    assert told(found) == ["rounding bias@pass_grad 0 0"]
    assert "cancel" in found.origins[0].why


def test_a_gradient_that_should_not_have_been_zero_is_no_rounding():
    there = (bits("<f4", seed=1) * 1e-2).astype("<f4")
    found = compared(zero_by_theory(), {"bias@pass_grad": there})
    assert told(found) == ["not_rounding bias@pass_grad 0 0"]


def test_noise_runs_say_that_a_gradient_is_made_of_noise():
    run = zero_by_theory(1e-3)  # too large to be told by its size alone
    there = [{"bias@pass_grad": bits("<f4", seed=seed) * np.float32(1e-3)} for seed in (1, 2, 3)]
    assert told(compared(run, there[0])) == ["not_rounding bias@pass_grad 0 0"]
    covered = [
        over(after(run, 0, size=size * ROUND), noise)
        for size, noise in zip((2, 9), there[1:], strict=True)
    ]
    assert told(compared(run, there[0], covered))[0].startswith("rounding")


def as_bfloat16(values):
    return (np.ascontiguousarray(values, "<f4").view("<u4") >> 16).astype("<u2")


def scale_gradient(terms):
    """The gradient of a normalisation's scale, which a kernel summed in bfloat16."""
    run = History()
    run.edges[0] = [Edges("input", "train", 0, 0, (SIZE,), missing=("it has no graph",))]
    run.made_of("norm", "input", "w:weight")
    for tensor in ("weight", "input", "norm"):
        run.add(f"{tensor}@value")
    run.add("norm@grad", raw=as_bfloat16(1e-3 * bits("<f4", terms * SIZE)), dtype="bfloat16")
    run.add("weight@pass_grad", raw=as_bfloat16(bits("<f4")), dtype="bfloat16")
    return run


@pytest.mark.parametrize(("terms", "cls"), [(16, "not_rounding"), (1024, "rounding")])
def test_a_low_precision_sum_may_round_by_the_root_of_its_terms(terms, cls):
    away = bits("<f4") + 10 * 2.0**-7 * bits("<f4", seed=1)
    found = compared(scale_gradient(terms), {"weight@pass_grad": as_bfloat16(away)})
    assert told(found) == [f"{cls} weight@pass_grad 0 0"]


def test_a_low_precision_sum_that_is_a_multiple_is_no_rounding():
    found = compared(scale_gradient(1024), {"weight@pass_grad": as_bfloat16(1.1 * bits("<f4"))})
    assert told(found) == ["not_rounding weight@pass_grad 0 0"]


@pytest.mark.parametrize("factor", [0.0, 1 / 256])
def test_a_noisy_gradient_that_is_scaled_down_is_no_noise(factor):
    run = zero_by_theory(1e-3)
    there = [{"bias@pass_grad": bits("<f4", seed=seed) * np.float32(1e-3)} for seed in (2, 3)]
    covered = [
        over(after(run, 0, size=size * ROUND), noise)
        for size, noise in zip((2, 9), there, strict=True)
    ]
    scaled = {"bias@pass_grad": run.records[-1].raw * np.float32(factor)}
    assert told(compared(run, scaled, covered)) == ["not_rounding bias@pass_grad 0 0"]


def test_noise_of_one_element_points_the_same_way_by_chance():
    run = zero_by_theory()
    run.records = run.records[:-1]
    run.add("bias@pass_grad", raw=np.array([1e-3], "<f4"))
    there = [{"bias@pass_grad": np.array([size], "<f4")} for size in (3e-3, 2e-3, 4e-3)]
    noise = [
        over(after(run, 0, size=size * ROUND), one)
        for size, one in zip((2, 9), there[1:], strict=True)
    ]
    assert told(compared(run, there[0], noise)) == ["rounding bias@pass_grad 0 0"]


def test_where_everything_is_noisy_no_difference_is_excused_by_it():
    run = chain(*NAMES)
    noise = [after(run, 0, size=size) for size in (0.7, 0.9)]
    changes = over(after(run, number(run, "c@grad"), size=0.2), {"c@grad 0": 0.2})
    assert told(compared(run, changes, noise)) == ["not_rounding c@grad 0 0"]


def test_an_operation_that_differs_between_noise_runs_is_not_deterministic():
    run = chain(*NAMES)
    changes = after(run, number(run, "b@grad"))
    found = compared(run, changes, [changes, {}])
    assert told(found) == ["nondeterministic b@grad 0 0"]
    assert found.verdict == "expected"


@pytest.mark.slow
def test_drift_inside_the_noise_is_expected_and_outside_is_not():
    run = chain(*NAMES, steps=4)
    noise = [after(run, 0, size=20 * ROUND)] * 3
    start = number(run, "c@grad")
    inside = over(after(run, start, size=20 * ROUND), {"c@grad 0": ROUND})
    found = compared(run, inside, noise)
    assert (found.verdict, told(found)) == ("expected", ["rounding c@grad 0 0"])
    assert "the noise runs drift as far" in found.sentence
    outside = over(after(run, start, size=400 * ROUND), {"c@grad 0": ROUND})
    found = compared(run, outside, noise)
    assert (found.verdict, told(found)) == ("unexpected", ["rounding c@grad 0 0"])
    assert "times that of the noise runs" in found.sentence
    assert [
        row.kind
        for row in sorted(found.growth, key=lambda row: row.kind)
        if row.step == 0 and (row.score or 0) > 4
    ] == [*("grad", "opt.exp_avg", "pass_grad", "updated")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "drift", "verdict"),
    [(2, 20, "expected"), (2, 90, "unexpected"), (20, 200, "unexpected")],
)
def test_a_drift_of_few_roundings_is_covered_by_less_noise(noise, drift, verdict):
    run = chain(*NAMES, steps=4)
    start = number(run, "c@grad")
    moved = over(after(run, start, size=drift * ROUND), {"c@grad 0": ROUND})
    assert compared(run, moved, [after(run, 0, size=noise * ROUND)] * 3).verdict == verdict


@pytest.mark.slow
def test_a_drift_may_grow_by_the_root_of_the_steps_in_which_it_rounds():
    run = chain(*NAMES, steps=4)
    noise = [after(run, 0, size=20 * ROUND)] * 3
    start = number(run, "c@grad")
    early = over(after(run, start, size=120 * ROUND), {"c@grad 0": ROUND})
    assert compared(run, early, noise).verdict == "unexpected"
    late = dict.fromkeys(after(run, number(run, "w_b@value", 3)), 120 * ROUND)
    within = over(after(run, start, size=20 * ROUND), {"c@grad 0": ROUND} | late)
    assert compared(run, within, noise).verdict == "expected"


@pytest.mark.slow
def test_beyond_the_horizon_of_the_noise_nothing_is_judged():
    run = chain(*NAMES, steps=4)
    late = dict.fromkeys(after(run, number(run, "w_b@value", 2)), 0.5)
    noise = [over(after(run, 0, size=20 * ROUND), late)] * 2
    changes = over(after(run, number(run, "c@grad")), dict.fromkeys(late, 0.9))
    found = compared(run, changes, noise)
    assert (found.horizon, found.verdict) == (2, "expected")
    assert any("from step 2 on" in note for note in found.notes)


@pytest.mark.slow
def test_noise_runs_that_were_perturbed_too_little_judge_nothing():
    run = chain(*NAMES, steps=4)
    raw = np.zeros(SIZE, "<u2")
    run.add("cast@value", step=3, raw=raw, dtype="bfloat16")
    a = run.table()
    drifting = after(run, number(run, "c@grad"), size=40 * ROUND, but=("input@value", "cast@value"))
    b = run.table(over(drifting, {"c@grad 0": ROUND}), "b")
    noise = run.table(after(run, 0), "n")
    assert compare_tables(align(a, b), [noise]).verdict == "unexpected"
    fine = replace(noise, header={0: {"perturbed": "1:float32"}})
    found = compare_tables(align(a, b), [fine])
    assert found.verdict == "suspect"
    assert any("perturbed by less" in note for note in found.notes)


@pytest.mark.parametrize(("mode", "cls"), [("sum:window=10", "window_start"), ("sum", "rounding")])
def test_a_window_of_several_steps_does_not_name_an_operation(mode, cls):
    run = one_operation()
    run.records = [replace(one, mode=mode) for one in run.records]
    found = compared(run, {"b@value": ROUND})
    assert told(found) == [f"{cls} b@value 0 0"]
    assert any("holds sums" in note for note in found.notes)


def test_an_operation_that_cannot_round_says_so():
    run = History()
    run.chain("input")
    run.made_of("b", "input", op="ViewBackward0")
    run.add("input@value")
    run.add("b@value")
    found = compared(run, {"b@value": ROUND})
    assert "ViewBackward0 cannot round" in found.origins[0].why


def test_runs_without_a_common_record_are_incomparable():
    one, two = one_operation(), History()
    two.add("other@value")
    found = compare_tables(align(one.table(), two.table()))
    assert (found.verdict, found.counts.only_a, found.counts.only_b) == ("incomparable", 2, 1)


@pytest.mark.parametrize(
    ("first", "incomplete"), [(None, True), (0, True), (1, False)], ids=["unknown", "0", "1"]
)
def test_gaps_matter_where_the_first_difference_may_lie_behind_them(first, incomplete):
    run = chain(*NAMES, steps=2)
    a = replace(run.table(), gaps={("c", "grad"): 2}, gaps_from=first)
    changed = run.table(after(run, number(run, "b@grad")), "b")
    found = compare_tables(align(a, changed))
    assert found.incomplete is incomplete
    assert any("a has gaps: 2 records are missing, of c@grad" in note for note in found.notes)
    assert compare_tables(align(a, run.table(run="b"))).incomplete


def test_pairs_are_all_matched_records_in_order_of_execution():
    run = chain(*NAMES)
    found = compared(run, after(run, number(run, "c@grad")))
    pairs = list(found.pairs())
    assert [pair.order for pair in pairs] == [one.order for one in run.records]
    assert [pair.place.name for pair in pairs] == [one.name for one in run.records]
    assert [pair.equal for pair in pairs].count(True) == found.counts.identical
    for pair, one in zip(pairs, run.records, strict=True):
        assert pair.digest_a == one.summary.digest.hex()
        assert (pair.digest_a == pair.digest_b) is pair.equal
        assert (pair.measure is None) is pair.equal
        assert pair.role == (
            "" if pair.equal else "rounding" if pair.place == found.first.place else "receiver"
        )


def test_the_json_has_exactly_the_contracts_fields():
    run = chain(*NAMES)
    told = compared(run, after(run, number(run, "c@grad"))).to_dict()
    must = "schema_version a b verdict counts first origins config_diff growth"
    assert set(must.split()) <= set(told)
    place = "step pass_index call rank phase name kind"
    assert set(told["first"]) == set(f"{place} order identical_before".split())
    own = "class ops parents error_eps share_differing max_abs max_ulp"
    assert set(f"{place} {own}".split()) <= set(told["origins"][0])
    assert set(told["growth"][0]) == {
        *("step", "kind", "differing", "matched", "median_error_eps", "score")
    }
    assert set(told["counts"]) == {*("matched", "identical", "differing", "only_a", "only_b")}
    json.loads(json.dumps(told, allow_nan=False))


def test_losses_part_later_than_tensors_do():
    run = History()
    run.chain("input", "b")
    for step in range(3):
        run.add("b@value", step)
        run.add("loss@value", step, raw=np.array(1.0 + step, "<f4"))
    changes = {"b@value": ROUND, "loss@value 1": np.array(2.0001, "<f4")}
    changes["loss@value 2"] = np.array(3.1, "<f4")
    losses = compared(run, changes).losses
    assert (losses.name, losses.first_bit, losses.above_1e6, losses.above_1e3) == ("loss", 1, 1, 2)
    assert [step for step, _, _ in losses.values] == [0, 1, 2]
    assert losses.values[0][1:] == (1.0, 1.0)


def test_the_losses_of_a_rank_that_alone_parts_are_those_that_part():
    run = History()
    for step in range(3):
        for rank in range(3):
            run.add("loss@value", step, rank=rank, raw=np.array(1.0 + step + rank, "<f4"))
    losses = compared(run, {"loss@value 2 0 0 1": np.array(9, "<f4")}).losses
    assert (losses.first_bit, losses.above_1e3) == (2, 2)
    assert losses.values[0][1:] == (2.0, 2.0)


def test_a_loss_that_becomes_nan_parts_there():
    run = History()
    run.add("loss@value", 0, raw=np.array(1.0, "<f4"))
    losses = compared(run, {"loss@value": np.array(np.nan, "<f4")}).losses
    assert losses.above_1e3 == 0
    assert math.isnan(losses.values[0][2])


@pytest.mark.parametrize(
    ("loss", "what"),
    [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite"), (1e30, "")],
)
def test_a_loss_that_is_no_number_in_one_run_alone_is_called_so(loss: float, what: str):
    run = History()
    run.chain("input", "b")
    for step in range(3):
        run.add("b@value", step)
        run.add("loss@value", step, raw=np.array(1.0 + step, "<f4"))
    found = compared(run, {"b@value 1": ROUND, "loss@value 2": np.array(loss, "<f4")})
    said = f"the loss of B is {what} at step 2"
    assert (said in found.sentence) == bool(what)
    section = next(one for one in sections(found) if one.key == "loss")
    assert section.head.endswith(
        f"by 1e-3 at 2{f'; {what} in B at 2' * bool(what)}; tensors part at 1"
    )


def test_losses_that_are_no_numbers_in_both_runs_are_not_told_apart():
    run = History()
    run.chain("input", "b")
    for step in range(3):
        run.add("b@value", step)
        run.add("loss@value", step, raw=np.array(np.nan if step else 1.0, "<f4"))
    found = compared(run, {"b@value 1": ROUND})
    assert found.losses.first_without_number() is None
    assert "NaN" not in found.sentence


@pytest.mark.parametrize("name", ["scale", "loss_weight", "loss"])
def test_a_parameter_is_no_loss_and_where_there_is_none_nothing_is_said_of_it(name):
    run = History()
    run.made_of("b", "a", f"w:{name}")
    for step in range(2):
        run.add(f"{name}@value", step, raw=np.array(2.0, "<f4"))
        run.add("b@value", step)
    found = compared(run, {"b@value": ROUND})
    assert found.losses is None
    assert "loss" not in found.sentence


@pytest.mark.parametrize("kind", ["updated", "delta", "opt.exp_avg", "pass_grad"])
def test_what_only_parameters_have_tells_them_where_no_edges_do(kind):
    run = History()
    run.add("loss_scale@value", raw=np.array(2.0, "<f4"))
    run.add(f"loss_scale@{kind}", raw=np.array(2.0, "<f4"))
    run.add("b@value")
    assert compared(run, {"b@value": ROUND}).losses is None


def test_a_scalar_that_nothing_is_known_to_compute_is_no_loss():
    run = History()
    for step in range(2):
        run.add("b@value", step)
        run.add("bn.momentum@value", step, raw=np.array(0.1, "<f4"))
    assert compared(run, {"b@value": ROUND}).losses is None
    run.made_of("cost", "b")
    run.add("cost@value", raw=np.array(1.0, "<f4"))
    assert compared(run, {"b@value": ROUND}).losses.name == "cost"
    run.add("train_loss@value", raw=np.array(1.0, "<f4"))
    assert compared(run, {"b@value": ROUND}).losses.name == "train_loss"


def test_headers_that_differ_are_told_but_for_what_differs_in_every_process():
    run = one_operation()
    a = replace(run.table(), header={0: {"torch.threads": 1, "pid": 1, "torch": "2"}})
    b = replace(run.table(run="b"), header={0: {"torch.threads": 2, "pid": 2, "new": None}})
    assert compare_tables(align(a, b)).config_diff == {
        "torch.threads": (1, 2),
        "torch": ("2", None),
    }


def configured(a, b):
    run = one_operation()
    tables = [replace(run.table(run=n), header={0: h}) for n, h in (("a", a), ("b", b))]
    return compare_tables(align(*tables)).config_diff


def test_an_optimizer_whose_groups_are_not_counted_has_one():
    adam = {"optimizer": "Adam"}
    assert configured(adam | {"optimizer.groups": 2}, adam) == {"optimizer.groups": (2, 1)}
    assert configured(adam, adam | {"optimizer.groups": 2}) == {"optimizer.groups": (1, 2)}
    assert configured(adam | {"optimizer.groups": 2}, {})["optimizer.groups"] == (2, None)


def test_autocast_is_off_only_where_the_header_says_so():
    low, off = {"amp.autocast": "bfloat16"}, {"amp.autocast": None}
    assert configured(low, off) == {"amp.autocast": ("bfloat16", "off")}
    assert configured(low, {}) == {"amp.autocast": ("bfloat16", None)}
    assert configured(off, off) == configured(off, {}) == {}


def test_it_is_short_where_it_is_printed():
    run = one_operation()
    assert repr(compared(run, {})).startswith("Comparison('a', 'b', identical: The runs are")


def scalars(count):
    """A run of losses alone."""
    run = History()
    run.made_of("loss", "w:w")
    for step in range(count):
        run.add("loss@value", step, raw=np.array(1.0 + step, "<f4"))
    return run


@pytest.mark.parametrize(
    ("count", "times", "verdict"),
    [(40, 1, "expected"), (40, 50, "unexpected"), (5, 1, "suspect"), (5, 50, "suspect")],
)
def test_scalars_are_judged_together_or_not_at_all(count, times, verdict):
    run = scalars(count)
    noise = [{"loss@value": 20 * ROUND}] * 2
    changes = {"loss@value": 20 * times * ROUND, "loss@value 0": ROUND}
    assert compared(run, changes, noise).verdict == verdict


def test_noise_that_is_saturated_from_the_first_step_on_still_covers():
    run = chain(*NAMES, steps=4)
    noise = [after(run, 0, size=size) for size in (0.5, 0.6)]
    changes = over(after(run, number(run, "c@grad"), size=0.4), {"c@grad 0": ROUND})
    assert compared(run, changes, noise).verdict == "expected"


def test_random_numbers_of_other_seeds_are_an_unequal_start():
    run = History()
    run.chain("input", "b")
    run.edges[0].append(
        Edges("drop", "train", 0, 0, (SIZE,), 0, (Parent("b"),), ("MulBackward0",), ((-1, 0),))
    )
    for tensor in ("w_b", "input", "b", "drop"):
        run.add(f"{tensor}@value")
    a, b = run.table(), run.table({"drop@value": 0.1}, "b")
    assert told(compare_tables(align(a, b))) == ["not_rounding drop@value 0 0"]
    seeded = [
        replace(table, header={0: {"torch.initial_seed": seed}})
        for seed, table in enumerate((a, b))
    ]
    assert told(compare_tables(align(*seeded))) == ["starts_unequal drop@value 0 0"]


@pytest.mark.parametrize(
    ("size", "cls"), [(FAR, "not_rounding"), (3.0, "starts_unequal")], ids=["near", "unrelated"]
)
def test_unrelated_values_of_unrecorded_parameters_are_an_unequal_start(size, cls):
    run = History()
    run.chain("b", "c")
    for tensor in ("b", "c"):
        run.add(f"{tensor}@value")
    found = compared(run, {"c@value": size})
    assert told(found) == [f"{cls} c@value 0 0"]


def test_an_operation_that_reads_indices_receives_from_them_although_autograd_does_not_say():
    run = History()
    run.edges[0] = [Edges("input", "train", 0, 0, (SIZE,), missing=("it has no graph",))]
    run.made_of("embedded", "w:w")
    run.add("w@value")
    run.add("input@value", raw=np.arange(SIZE), dtype="int64")
    run.add("embedded@value")
    found = compared(run, {"input@value": 1, "embedded@value": FAR})
    assert told(found) == ["starts_unequal input@value 0 0"]


def test_records_of_one_run_alone_are_counted_and_change_no_verdict():
    run = chain(*NAMES)
    a = run.table()
    run.add("more@value")
    found = compare_tables(align(a, run.table(run="b")))
    assert (found.verdict, found.counts.only_a, found.counts.only_b) == ("identical", 0, 1)


def test_a_run_that_alone_was_compiled_is_told_by_its_nodes():
    run = one_operation()
    other = History()
    other.made_of("b", "w:w", op="CompiledFunctionBackward")
    other.records = run.records
    found = compare_tables(align(run.table(), other.table(run="b")))
    assert found.config_diff == {"torch.backend": ("eager", "compiled")}
    assert compared(run, {}).config_diff == {}


@pytest.mark.slow
def test_pairs_of_many_chunks_keep_their_order_and_their_measures():
    run = History()
    run.chain("input", "b")
    for step in range(3000):
        run.add("input@value", step)
        run.add("b@value", step)
    changes = {f"b@value {step}": ROUND for step in range(7, 3000, 5)}
    found = compared(run, changes)
    pairs = list(found.pairs())
    assert [pair.order for pair in pairs] == list(range(6000))
    differing = [pair for pair in pairs if not pair.equal]
    assert [pair.place.step for pair in differing] == list(range(7, 3000, 5))
    assert all((pair.measure is not None) is not pair.equal for pair in pairs)


def test_a_guess_decides_no_verdict_and_says_so():
    sides = []
    for name, last in (("old", 50), ("new", 50.5)):
        run = History()
        run.add("x@value")
        run.add(f"{name}@value", raw=np.array([30, 40, last], "<f4"))
        sides.append(run.table(run=name))
    found = compare_tables(align(*sides))
    assert (found.verdict, found.counts.differing, found.counts.only_b) == ("identical", 0, 1)
    assert any("old may be new in new: a guess" in note for note in found.notes)


def scaled(changes, skipped):
    """A run whose gradients overflow at step 1 in both runs; `skipped`: which of them skip it."""
    run = chain(*NAMES, steps=3)
    there = bits("<f4")
    there[:2] = np.inf
    sides = []
    for name, own in (("a", {}), ("b", changes)):
        over_all = {f"w_{one}@{kind} 1": there for one in "bcd" for kind in ("grad", "pass_grad")}
        table = run.table(over(over_all, own), name)
        grads = np.array([tensor.kind == "grad" for tensor in table.tensors])[table.tensor]
        flags = np.where(grads & (table.step == 1), 2, 0) if name in skipped else table.step * 0
        sides.append(replace(table, flags=flags))
    return compare_tables(align(*sides))


def overflow(count):
    there = bits("<f4")
    there[:count] = np.inf
    return {"w_b@pass_grad 1": there, "w_b@grad 1": there}


def test_a_step_that_both_runs_skip_may_overflow_elsewhere_in_each():
    found = scaled(overflow(5), "ab")
    assert {origin.cls for origin in found.origins} == {"rounding"}
    assert found.verdict == "suspect"
    assert not any("skipped" in note for note in found.notes)
    assert scaled(overflow(5), "").verdict == "unexpected"


def test_an_overflow_of_everything_in_a_step_that_both_skip_is_none():
    found = scaled(overflow(SIZE), "ab")
    assert {origin.cls for origin in found.origins} == {"rounding"}
    assert "both runs skipped" in found.origins[0].why


@pytest.mark.parametrize("run", ["a", "b"])
def test_a_step_that_one_run_alone_skips_is_told(run):
    found = scaled(overflow(5), run)
    assert (found.verdict, found.origins[0].cls) == ("unexpected", "nonfinite")
    assert f"the scaler skipped the step in {run} only" in found.origins[0].why
    assert any(f"the scaler skipped step 1 in {run} only" in note for note in found.notes)


def partial(run, keep, changes, **more):
    """A run against one that has only some of its records, with changes."""
    other = History()
    other.edges = run.edges
    other.records = [one for one in run.records if keep(one)]
    return compare_tables(align(run.table(), replace(other.table(changes, "b"), **more)))


def test_an_update_whose_gradient_a_alone_recorded_is_no_fault_of_the_optimizer():
    run = chain(*NAMES, steps=2)
    changes = {f"w_{name}@updated": FAR for name in "bcd"}
    found = partial(run, lambda one: one.kind == "updated", changes)
    assert told(found) == ["window_start w_b@updated 0 0"]
    assert "w_b@grad" in found.origins[0].why
    assert found.verdict == "suspect"
    assert compared(run, changes).verdict == "unexpected"


def test_what_differs_where_the_step_before_is_as_alone_is_a_window_start():
    run = chain(*NAMES, steps=4)
    changes = after(run, number(run, "w_b@value", 3), size=FAR)
    found = partial(run, lambda one: one.step % 3 == 0, changes)
    assert {origin.cls for origin in found.origins} == {"window_start"}
    assert found.verdict == "suspect"


def test_an_optimizer_whose_state_was_not_restored_is_asked_for_it():
    run = chain(*NAMES, steps=4)
    changes = after(run, number(run, "w_b@updated", 2), size=FAR)
    found = partial(run, lambda one: one.step >= 2, changes)
    assert told(found)[0] == "window_start w_b@updated 2 0"
    assert "was its state restored?" in found.origins[0].why


def test_what_b_computes_a_value_from_and_a_does_not_have_is_named():
    run = chain(*NAMES)
    b = History()
    b.chain("input", "b")
    b.made_of("drop", "b")
    b.made_of("c", "drop", "w:w_c")
    b.made_of("d", "c", "w:w_d")
    b.records = list(run.records)
    b.add("drop@value")
    changes = after(run, number(run, "c@value"), but=("drop@value",), size=FAR)
    found = compare_tables(align(run.table(), b.table(changes, "b")))
    assert told(found)[0] == "not_rounding c@value 0 0"
    assert "B computes it from drop, which A does not have" in found.origins[0].why
    assert "everything that both recorded" in found.sentence


def buffered(change):
    """A buffer that autograd does not know, written between steps."""
    run = History()
    run.chain("input", "b")
    base = bits("<f4")
    for step in range(3):
        run.add("input@value", step)
        run.add("mean@value", step, raw=base * np.float32(1 + step))
        run.add("b@value", step)
    return compared(run, {"mean@value 1": change, "mean@value 2": change})


def test_a_buffer_that_was_equal_and_is_updated_otherwise_is_no_unequal_start():
    found = buffered(bits("<f4") * 3)
    assert told(found) == ["not_rounding mean@value 1 0"]
    assert "it was equal at step 0" in found.origins[0].why
    assert "B is 1.5 times A" in found.origins[0].why
    assert told(buffered(bits("<f4", seed=9))) == ["starts_unequal mean@value 1 0"]
    assert told(buffered(ROUND)) == ["rounding mean@value 1 0"]


def test_runs_without_records_are_incomparable():
    nothing = History().table()
    assert compare_tables(align(nothing, nothing)).verdict == "incomparable"


def test_a_run_that_ends_before_the_other_says_so():
    run = chain(*NAMES, steps=4)
    found = partial(run, lambda one: one.step < 2, {})
    assert found.verdict == "identical"
    assert found.complete.why == "b ends at step 1, a goes on to step 3"
