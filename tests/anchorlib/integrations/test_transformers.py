"""Transformers' Trainer, recorded by one callback."""

from __future__ import annotations

import importlib
import inspect
import sys

import numpy as np
import pytest

import anchorlib
from tests.anchorlib.integrations.consumed import (
    assert_recorded,
    assert_same_bits,
    gradients_consumed,
    where,
)


@pytest.fixture(scope="module")
def runs():
    """Imported here: transformers takes seconds, and collecting tests should not."""
    return importlib.import_module("tests.anchorlib.integrations.transformers_runs")


@pytest.fixture
def recorder(tmp_path):
    """A callback that records into a run of this test."""
    module = importlib.import_module("anchorlib.integrations.transformers")

    def made(**options):
        return module.AnchorCallback("run1", store=tmp_path, **options)

    return made


@pytest.fixture
def read(tmp_path):
    return lambda: anchorlib.open_run("run1", tmp_path)


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"max_grad_norm": 0.01}])
def test_a_training_is_recorded_as_it_is_and_left_as_it_is(runs, recorder, read, tmp_path, options):
    options = {"gradient_accumulation_steps": 2, **options}
    model, plain = runs.made(), runs.made()
    with gradients_consumed(plain) as seen:
        runs.trainer(plain, tmp_path, **options).train()
    runs.trainer(model, tmp_path, [recorder()], **options).train()
    assert_same_bits(model, plain)
    run = read()
    assert run.state == "closed"
    assert_recorded(run, seen)
    passes = [("train", step, passed, 0) for step in range(4) for passed in range(2)]
    for name in ("fc1", "fc2", "output:loss"):
        assert where(run, name) == where(run, name, "grad") == passes
    [activation] = run.tensors("fc1@value")
    assert activation.dtype == ("bfloat16" if "bf16" in options else "float32")


def test_the_gradients_of_accumulated_batches_add_up_to_the_one_consumed(
    runs, recorder, read, tmp_path
):
    callback = recorder(tensors=["fc1.*@grad", "fc1.*@pass_grad"])
    options = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.0}
    runs.trainer(runs.made(), tmp_path, [callback], **options).train()
    for name in ("fc1.weight", "fc1.bias"):
        consumed, parts = (read().series(name, kind) for kind in ("grad", "pass_grad"))
        for step in range(4):
            first, second, third = (parts.at(step=step, pass_index=i).array for i in range(3))
            expected = consumed.at(step=step).array
            np.testing.assert_array_equal(first + second + third, expected)


def test_evaluation_during_training_is_a_phase_of_its_own(runs, recorder, read, tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
    runs.trainer(runs.made(), tmp_path, [recorder()], max_steps=3, **options).train()
    evaluated = {step: [("eval", step, 0, 0), ("eval", step, 1, 0)] for step in (0, 2, 3)}
    trained = [("train", step, 0, 0) for step in range(3)]
    expected = [*evaluated[0], *trained[:2], *evaluated[2], trained[2], *evaluated[3]]
    assert where(read(), "fc1") == expected
    assert where(read(), "fc1", "grad") == trained


def test_a_training_from_a_checkpoint_is_the_next_attempt_of_the_same_steps(
    runs, recorder, read, tmp_path
):
    options = {"save_strategy": "steps", "save_steps": 2}
    runs.trainer(runs.made(), tmp_path, [recorder(tensors="*@grad")], **options).train()
    again = runs.made()
    with gradients_consumed(again) as seen:
        trainer = runs.trainer(again, tmp_path, [recorder(tensors="*@grad")], **options)
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    run = read()
    for name, consumed in seen.items():
        series = run.series(name, "grad")
        assert series.columns["step"].tolist() == [0, 1, 2, 3]
        assert series.columns["attempt"].tolist() == [0, 0, 1, 1]
        np.testing.assert_array_equal(series.values()[2:], consumed)


def test_a_language_model_is_named_as_it_is_written_and_its_tied_weight_comes_once(
    runs, recorder, read, tmp_path
):
    model = runs.language_model()
    names = [name for name, _ in model.named_parameters()]  # lm_head.weight is transformer.wte's
    with gradients_consumed(model) as seen:
        data = runs.Words()
        options = {"bf16": True, "activation_checkpointing": True}
        runs.trainer(model, tmp_path, [recorder()], data=data, **options).train()
    run = read()
    assert [one.name for one in run.tensors("*.weight@grad", "*.bias@grad")] == names
    assert_recorded(run, seen)
    outputs = {one.name for one in run.tensors("*@value")}
    assert {"transformer.h.0.attn.c_attn", "transformer.ln_f", "lm_head"} <= outputs


def test_an_exception_leaves_a_session_that_the_next_training_ends(runs, recorder, read, tmp_path):
    """The trainer does not tell its callbacks of exceptions."""
    callback = recorder(tensors=["fc1.bias@grad"], overwrite=True)
    with pytest.raises(ZeroDivisionError, match="of the user's"):
        runs.trainer(runs.made(), tmp_path, [callback, runs.Failing(2)]).train()
    assert callback.session.current_step == 2
    runs.trainer(runs.made(), tmp_path, [callback], max_steps=3).train()
    assert callback.session is None
    assert read().series("fc1.bias", "grad").columns["step"].tolist() == [0, 1, 2]
    assert read().state == "closed"


def test_a_selector_that_matches_nothing_is_told_as_training_begins(runs, recorder, tmp_path):
    callback = recorder(tensors=["fc3"])
    with pytest.raises(anchorlib.UnknownTensorError, match="fc3"):
        runs.trainer(runs.made(), tmp_path, [callback]).train()
    anchorlib.start("another", store=tmp_path).close()  # the process is free for it


def test_every_option_of_start_is_one_of_the_callback(recorder):
    module = importlib.import_module("anchorlib.integrations.transformers")
    for name in inspect.signature(anchorlib.start).parameters:
        module.AnchorCallback(**{name: None})
    with pytest.raises(TypeError, match="tensros"):
        recorder(tensros=["fc1"])


def test_without_transformers_the_import_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "anchorlib.integrations.transformers", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(anchorlib.MissingExtraError, match=r"'anchorlib\[transformers\]'"):
        importlib.import_module("anchorlib.integrations.transformers")
