"""Steps, passes, calls and phases count themselves."""

from __future__ import annotations

from anchorlib.capture.counting.clock import CallCoordinates, Clock


class Optimizer:
    """Something that a clock can be bound to."""


def test_a_plain_loop_counts_steps_at_the_optimizer():
    clock, optimizer = Clock(), Optimizer()
    for step in range(3):
        at = clock.call("h")
        assert at == CallCoordinates(step, 0, 0, "train")
        clock.gradient(at)
        clock.optimizer_stepped(optimizer)


def test_only_the_first_optimizer_to_complete_is_the_clock():
    clock, first, second = Clock(), Optimizer(), Optimizer()
    clock.optimizer_stepped(first)
    clock.optimizer_stepped(second)
    assert clock.step == 1
    clock.optimizer_stepped(first)
    assert clock.step == 2


def test_a_watched_optimizer_is_the_clock_whoever_completes_first():
    clock, other, watched = Clock(), Optimizer(), Optimizer()
    clock.bind(watched)
    clock.optimizer_stepped(other)
    assert clock.step == 0
    clock.optimizer_stepped(watched)
    assert clock.step == 1


def test_the_first_explicit_step_ends_the_step_the_optimizer_has_just_ended():
    clock, optimizer = Clock(), Optimizer()
    for step in range(4):
        at = clock.call("h")
        assert at.step == step
        clock.gradient(at)
        clock.optimizer_stepped(optimizer)
        clock.end_step()
    assert clock.step == 4


def test_the_first_explicit_step_ends_a_step_that_no_optimizer_has_ended():
    clock, optimizer = Clock(), Optimizer()
    clock.gradient(clock.call("h"))
    clock.optimizer_stepped(optimizer)
    clock.gradient(clock.call("h"))  # a second backward, then no optimizer step
    clock.end_step()
    assert clock.step == 2


def test_without_an_optimizer_steps_are_what_the_user_says():
    clock = Clock(first_step=5)
    clock.end_step()
    assert clock.step == 6
    clock.end_step(100)
    assert clock.call("h").step == 100


def test_an_explicit_step_takes_the_clock_over():
    clock, optimizer = Clock(), Optimizer()
    clock.end_step()
    clock.optimizer_stepped(optimizer)
    clock.optimizer_stepped(optimizer)
    assert clock.step == 1


def test_micro_batches_are_passes_and_a_step_starts_again_at_pass_zero():
    clock, optimizer = Clock(), Optimizer()
    seen = []
    for _ in range(2):
        for _ in range(3):
            at = clock.call("h")
            seen.append(at[:3])
            clock.gradient(at)
        clock.optimizer_stepped(optimizer)
    assert seen == [(s, p, 0) for s in range(2) for p in range(3)]


def test_uses_of_a_name_inside_a_pass_are_calls():
    clock = Clock()
    assert [clock.call("h").call for _ in range(3)] == [0, 1, 2]
    assert clock.call("other").call == 0
    clock.gradient(clock.call("h"))
    assert clock.call("h") == CallCoordinates(0, 1, 0, "train")


def test_two_forwards_before_one_backward_are_two_calls_of_one_pass():
    clock = Clock()
    first, second = clock.call("h"), clock.call("h")
    assert (first.pass_index, second.pass_index) == (0, 0)
    clock.gradient(second)
    clock.gradient(first)
    assert clock.call("h") == CallCoordinates(0, 1, 0, "train")


def test_without_gradients_each_forward_of_a_root_is_a_pass():
    clock = Clock()
    for n in range(3):
        clock.enter_root(1, training=True, gradients=False)
        assert clock.call("h") == CallCoordinates(0, n, 0, "train")
        clock.leave_root()


def test_two_roots_share_a_pass():
    clock = Clock()
    for n in range(2):
        for root in (1, 2):
            clock.enter_root(root, training=False, gradients=False)
            assert clock.call(f"h{root}") == CallCoordinates(0, n, 0, "eval")
            clock.leave_root()


def test_with_gradients_a_second_forward_of_a_root_is_a_call():
    clock = Clock()
    for n in range(2):
        clock.enter_root(1, training=True, gradients=True)
        assert clock.call("h") == CallCoordinates(0, 0, n, "train")
        clock.leave_root()


def test_validation_inside_a_step_does_not_renumber_training():
    clock = Clock()
    at = clock.call("h")
    for n in range(4):
        clock.enter_root(1, training=False, gradients=False)
        assert clock.call("h") == CallCoordinates(0, n, 0, "eval")
        clock.leave_root()
    assert clock.call("h") == CallCoordinates(0, 0, 1, "train")
    clock.gradient(at)
    assert clock.call("h") == CallCoordinates(0, 1, 0, "train")


def test_an_explicit_phase_wins_over_eval():
    clock = Clock()
    with clock.in_phase("test"):
        clock.enter_root(1, training=False, gradients=False)
        assert clock.call("h").phase == "test"
        clock.leave_root()
    assert clock.phase == "train"


def test_a_late_gradient_does_not_open_a_pass_in_another_step():
    clock = Clock()
    late = clock.call("h")
    clock.end_step()
    clock.call("h")
    clock.gradient(late)
    assert clock.call("h") == CallCoordinates(1, 0, 1, "train")


def test_each_pass_is_announced_once_and_each_step():
    passes, steps = [], []
    clock = Clock(on_pass=passes.append, on_step=steps.append)
    for _ in range(2):
        for _ in range(2):
            at = clock.call("h")
            clock.call("h")
            clock.gradient(at)
        clock.end_step()
    assert [at[:2] for at in passes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert steps == [1, 2]
