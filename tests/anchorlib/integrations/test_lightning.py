"""Lightning's trainer, recorded by one callback."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import anchorlib
from anchorlib import UnknownTensorError
from tests.anchorlib.integrations.consumed import (
    assert_recorded,
    assert_same_bits,
    gradients_consumed,
    where,
)

pytestmark = [
    # Lightning's own use of torch's pytrees, and its advice on data loading.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
]


@pytest.fixture(scope="module")
def runs():
    """Imported here: Lightning takes seconds, and collecting tests should not."""
    return importlib.import_module("tests.anchorlib.integrations.lightning_runs")


@pytest.fixture
def recorder(tmp_path):
    """A callback that records into a run of this test."""
    module = importlib.import_module("anchorlib.integrations.lightning")

    def made(**options):
        return module.AnchorCallback("run1", store=tmp_path, **options)

    return made


@pytest.fixture
def read(tmp_path):
    return lambda: anchorlib.open_run("run1", tmp_path)


@pytest.mark.parametrize("kind", ["Net", "Forward"])
def test_a_fit_is_recorded_as_it_is_and_left_as_it_is(runs, recorder, read, kind):
    model, plain = runs.made(getattr(runs, kind)), runs.made(getattr(runs, kind))
    with gradients_consumed(plain) as seen:
        runs.fit(plain, accumulate_grad_batches=2, max_epochs=2)
    runs.fit(model, [recorder()], accumulate_grad_batches=2, max_epochs=2)
    assert_same_bits(model, plain)
    run = read()
    assert run.state == "closed"
    assert_recorded(run, seen)
    passes = [("train", step, passed, 0) for step in range(6) for passed in range(2)]
    for name in ("fc1", "fc2", "loss"):
        assert where(run, name) == where(run, name, "grad") == passes


def test_the_gradients_of_accumulated_batches_add_up_to_the_one_consumed(runs, recorder, read):
    """Nothing in the forward is watched or anchored: only the batches tell the passes apart."""
    runs.fit(
        runs.made(runs.Silent),
        [recorder(tensors=["fc1.*@grad", "fc1.*@pass_grad"])],
        accumulate_grad_batches=3,
    )
    run = read()
    for name in ("fc1.weight", "fc1.bias"):
        parts = run.series(name, "pass_grad")
        assert where(run, name, "pass_grad") == [
            ("train", step, passed, 0) for step in range(2) for passed in range(3)
        ]
        consumed = run.series(name, "grad").values()
        for step in range(2):
            first, second, third = (parts.at(step=step, pass_index=i).array for i in range(3))
            np.testing.assert_array_equal(first + second + third, consumed[step])


@pytest.mark.parametrize("kind", ["Net", "Forward"])
def test_validation_and_the_check_before_training_are_phases_of_their_own(
    runs, recorder, read, kind
):
    model = runs.made(getattr(runs, kind))
    runs.fit(model, [recorder()], train=4, validate=2, val_check_interval=2, num_sanity_val_steps=1)
    assert where(read(), "fc1") == [
        ("sanity", 0, 0, 0),
        ("train", 0, 0, 0),
        ("train", 1, 0, 0),
        ("eval", 2, 0, 0),
        ("eval", 2, 1, 0),
        ("train", 2, 0, 0),
        ("train", 3, 0, 0),
        ("eval", 4, 0, 0),
        ("eval", 4, 1, 0),
    ]


def test_validation_inside_an_accumulated_step_does_not_renumber_it(runs, recorder, read):
    runs.fit(
        runs.made(),
        [recorder()],
        train=4,
        validate=1,
        val_check_interval=1,
        accumulate_grad_batches=2,
    )
    trained = [at for at in where(read(), "fc1") if at[0] == "train"]
    assert trained == [("train", step, passed, 0) for step in range(2) for passed in range(2)]


def test_under_mixed_precision_grad_is_unscaled_and_the_scale_of_the_rest_is_told(
    runs, recorder, read
):
    scale = 2.0**10
    model, plain = runs.made(), runs.made()
    with gradients_consumed(plain) as seen:
        runs.fit(plain, plugins=[runs.half_precision(scale)])
    runs.fit(
        model,
        [recorder(tensors=["*@grad", "fc1.weight@pass_grad"])],
        plugins=[runs.half_precision(scale)],
    )
    assert_same_bits(model, plain)
    run = read()
    assert_recorded(run, seen)
    assert set(run.series("fc1.weight", "grad").columns["scale"]) == {1.0}
    parts = run.series("fc1.weight", "pass_grad")
    assert set(parts.columns["scale"]) == {scale}
    for part, consumed in zip(parts.values(), seen["fc1.weight"], strict=True):
        np.testing.assert_array_equal(part / scale, consumed)


def test_a_step_that_the_scaler_skips_is_a_step(runs, recorder, read):
    """At first the scale is so large that float16 overflows; it is halved until it does not."""
    runs.fit(
        runs.made(), [recorder(tensors=["fc2.weight@grad"])], plugins=[runs.half_precision(2.0**18)]
    )
    flags = read().series("fc2.weight", "grad").columns["flags"].tolist()
    assert len(flags) == 6
    assert flags[0] == "skipped"
    assert flags[-1] == ""


def test_a_clipped_gradient_is_recorded_as_it_is_consumed(runs, recorder, read):
    model, clip = runs.made(), 0.01
    with gradients_consumed(model) as seen:
        runs.fit(model, [recorder(tensors=["*@grad"])], gradient_clip_val=clip)
    run = read()
    assert_recorded(run, seen)
    norms = np.sqrt(sum(run.series(name, "grad").columns["l2"] ** 2 for name in seen))
    np.testing.assert_allclose(norms, clip, rtol=1e-3)


@pytest.mark.parametrize("order", ["dg", "gd"])
def test_a_gans_two_optimizers_step_in_one_step_whichever_comes_first(runs, recorder, read, order):
    model, plain = runs.made(runs.Gan, order), runs.made(runs.Gan, order)
    with gradients_consumed(plain) as seen:
        runs.fit(plain)
    runs.fit(model, [recorder()])
    assert_same_bits(model, plain)
    run = read()
    assert_recorded(run, seen)
    assert where(run, "score") == [
        ("train", step, passed, 0) for step in range(6) for passed in range(2)
    ]


def test_a_critic_that_steps_twice_a_batch_does_so_in_two_calls(runs, recorder, read):
    model = runs.made(runs.Gan, "ddg")
    with gradients_consumed(model) as seen:
        runs.fit(model, [recorder(tensors=["*@grad"])])
    critic = read().series("d.weight", "grad")
    assert where(read(), "d.weight", "grad") == [
        ("train", step, 0, call) for step in range(6) for call in range(2)
    ]
    np.testing.assert_array_equal(critic.values(), seen["d.weight"])
    assert where(read(), "g.weight", "grad") == [("train", step, 0, 0) for step in range(6)]


def test_a_batch_in_which_no_optimizer_steps_ends_no_step(runs, recorder, read):
    model = runs.made(runs.Gan, "dg", 3)
    with gradients_consumed(model) as seen:
        runs.fit(model, [recorder()])
    run = read()
    assert run.steps == [0, 1]
    assert_recorded(run, seen)


def test_an_exception_goes_on_and_leaves_a_closed_run(runs, recorder, read, tmp_path):
    model, callback = runs.made(), recorder()

    def fail(batch, batch_idx):
        if batch_idx == 2:
            raise ZeroDivisionError("of the user's")
        return model.loss(batch[0])

    model.training_step = fail
    with pytest.raises(ZeroDivisionError, match="of the user's"):
        runs.fit(model, [callback])
    assert callback.session is None
    assert read().state == "closed"
    assert read().steps == [0, 1]
    anchorlib.start("another", store=tmp_path).close()  # the process is free for it


@pytest.mark.parametrize("kind", ["Net", "Gan"])
def test_a_fit_from_a_checkpoint_is_the_next_attempt_of_the_same_steps(
    runs, recorder, read, tmp_path, kind
):
    kind = getattr(runs, kind)
    trainer = runs.fit(runs.made(kind), [recorder()], train=3)
    trainer.save_checkpoint(tmp_path / "at3.ckpt")
    resumed = runs.made(kind)
    with gradients_consumed(resumed) as seen:
        runs.fit(resumed, [recorder()], train=3, max_epochs=3, ckpt_path=tmp_path / "at3.ckpt")
    run = read()
    for name, consumed in seen.items():
        columns = run.series(name, "grad").columns
        assert columns["step"].tolist() == list(range(9))
        assert columns["attempt"].tolist() == 3 * [0] + 6 * [1]
        np.testing.assert_array_equal(run.series(name, "grad").values()[3:], consumed)


def test_a_checkpoint_made_without_the_callback_is_resumed_at_the_trainers_step(
    runs, recorder, read, tmp_path
):
    runs.fit(runs.made(), train=3).save_checkpoint(tmp_path / "at3.ckpt")
    runs.fit(
        runs.made(),
        [recorder(tensors=["fc1.bias@grad"])],
        train=3,
        max_epochs=2,
        ckpt_path=tmp_path / "at3.ckpt",
    )
    assert read().steps == [3, 4, 5]


def test_fitting_again_after_the_end_begins_at_step_0_of_another_run(runs, recorder, tmp_path):
    callback = recorder(overwrite=True)
    for _ in range(2):
        runs.fit(runs.made(), [callback], train=2)
        run = anchorlib.open_run("run1", tmp_path)
        assert run.series("fc1.bias", "grad").columns["step"].tolist() == [0, 1]
        assert run.series("fc1.bias", "grad").columns["attempt"].tolist() == [0, 0]


def test_a_selector_that_matches_nothing_is_told_as_the_fit_begins(runs, recorder):
    callback = recorder(tensors=["fc3"])
    with pytest.raises(UnknownTensorError, match="fc3"):
        runs.fit(runs.made(), [callback])
    assert callback.session is None
    with anchorlib.start("another", store=callback._training._options["store"]) as session:
        assert session.current_step == 0


def test_every_option_of_start_is_one_of_the_callback(recorder, tmp_path):
    module = importlib.import_module("anchorlib.integrations.lightning")
    for name in inspect.signature(anchorlib.start).parameters:
        module.AnchorCallback(**{name: None})
    with pytest.raises(TypeError, match="tensros"):
        recorder(tensros=["fc1"])


def test_modes_attributes_and_ranks_are_passed_on(runs, recorder, read):
    runs.fit(
        runs.made(),
        [
            recorder(
                tensors=["fc1.bias@grad"], mode=anchorlib.Sum(3), attributes={"lr": 0.1}, rank=5
            )
        ],
    )
    run = read()
    assert run.ranks == [5]
    assert run.series("fc1.bias", "grad").columns["count"].tolist() == [3, 3]
    assert run.header()["user.lr"] == 0.1


def test_validating_without_a_fit_records_nothing(runs, recorder, tmp_path):
    trainer = runs.pl.Trainer(callbacks=[recorder()], enable_checkpointing=False, **runs.PLAIN)
    trainer.validate(runs.made(), runs.batches(2), verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_of_pytorch_lightning_takes_the_same_callback(runs, recorder, read):
    package = importlib.import_module("pytorch_lightning")

    members = {k: v for k, v in vars(runs.Net).items() if not k.startswith("__")}

    def begin(self):
        package.LightningModule.__init__(self)
        self.fc1, self.fc2 = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)

    model = type("Net", (package.LightningModule,), {**members, "__init__": begin})()
    with gradients_consumed(model) as seen:
        runs.fit(model, [recorder()], package=package, validate=1)
    assert_recorded(read(), seen)
    assert ("eval", 6, 0, 0) in where(read(), "fc1")


@pytest.mark.long
def test_ranks_that_lightning_launches_share_a_run_that_nobody_named(tmp_path):
    script = Path(__file__).with_name("lightning_ranks.py")
    # Lightning leaves LOCAL_RANK and MASTER_PORT behind in a process: whoever finds them launches
    # no ranks, and waits for ever for those that another is to launch.
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "XDG_CACHE_HOME", "VIRTUAL_ENV")
    clean = {name: os.environ[name] for name in kept if name in os.environ}
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, env=clean, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    [place] = tmp_path.glob("*.zarr")
    run = anchorlib.open_run(place)
    assert run.ranks == [0, 1]
    trained = [("train", step, passed, 0) for step in range(2) for passed in range(2)]
    for rank in run.ranks:
        assert where(run, "fc1", rank=rank) == [*trained, ("eval", 2, 0, 0)]
        assert where(run, "fc1", "grad", rank=rank) == trained
    local, consumed = (
        [run.series(name, "grad", rank=rank).values() for rank in run.ranks]
        for name in ("fc1", "fc1.weight")
    )
    assert not np.array_equal(*local)
    np.testing.assert_array_equal(*consumed)  # DDP's average


def test_without_lightning_the_import_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "anchorlib.integrations.lightning", raising=False)
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(anchorlib.MissingExtraError, match=r"pip install 'anchorlib\[lightning\]'"):
        importlib.import_module("anchorlib.integrations.lightning")
