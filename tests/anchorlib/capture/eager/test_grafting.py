"""A training that goes on with another run's values shows each cause, and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.errors import OptionError, RunNotFoundError, SessionError
from tests.by_hand import Applied, tanh_by_hand
from tests.cli.made import anchor
from tests.seeds import seeds
from tests.warm import warm_python

SIZE, STEPS = 24, 3
Tensor = torch.Tensor


class WideNorm(nn.LayerNorm):
    """A layer norm that rounds once."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 2**-20)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "tanh": (nn.Tanh, tanh_by_hand),
    "gelu": (nn.GELU, lambda: nn.GELU(approximate="tanh")),
    "norm": (lambda: nn.LayerNorm(SIZE), lambda: nn.LayerNorm(SIZE, eps=1e-3)),
    "scaled": (lambda: nn.LayerNorm(SIZE), lambda: WideNorm(SIZE)),
    "silu": (nn.SiLU, lambda: Applied(lambda x: x * torch.sigmoid(x) * (1 + 2**-22))),
    "softmax": (lambda: nn.Softmax(-1), lambda: Applied(lambda x: x.log_softmax(-1).exp())),
    "relu": (nn.ReLU, lambda: nn.LeakyReLU(1e-3)),
}


def net(kinds: Sequence[str], faults: Sequence[int]) -> nn.Sequential:
    """Linear layers with these between them; those at `faults` are made otherwise."""
    layers: list[nn.Module] = [nn.Linear(SIZE, SIZE)]
    for number, kind in enumerate(kinds):
        layers += [LAYERS[kind][number in faults](), nn.Linear(SIZE, SIZE)]
    model = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def train(
    store: Path, run: str, model: nn.Module, *, graft: str | None = None, **options: Any
) -> str:
    """Records a short training, on the values of `graft` where one is given."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=options.pop("eps", 1e-8))
    data = torch.Generator().manual_seed(2)
    with anchorlib.start(run, store=store) as session:
        session.watch(model, tensors="*", optimizer=optimizer)

        def steps() -> None:
            for _ in range(STEPS):
                optimizer.zero_grad()
                x = torch.randn(16, SIZE, generator=data)
                model(x).square().mean().backward()
                optimizer.step()

        if graft is None:
            steps()
        else:
            with anchorlib.graft(graft, **options):
                steps()
    return run


def causes(store: Path, run: str) -> set[str]:
    """The modules that compare names, without what follows of a module's own parameters."""
    found = anchorlib.compare("a", run, store=store)
    return {origin.place.name.partition(".")[0] for origin in found.origins}


def made_by(place: str) -> set[str]:
    """The modules between a gradient's anchor and the one before it: it may be either's."""
    return {place, str(int(place) + 1)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(checked=1, tested=6, wide=12))
def test_every_fault_shows_in_one_rerun_and_nothing_else_does(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    kinds = [chance.choice(list(LAYERS)) for _ in range(5)]
    faults = chance.sample(range(5), seed % 4)
    train(tmp_path, "a", net(kinds, ()))
    visible = set()
    for fault in faults:
        train(tmp_path, f"only{fault}", net(kinds, [fault]))
        if anchorlib.compare("a", f"only{fault}", store=tmp_path).verdict != "identical":
            visible.add(str(2 * fault + 1))
    train(tmp_path, "b", net(kinds, faults), graft="a")
    named = causes(tmp_path, "b")
    assert all(made_by(str(int(one) - 1)) & named for one in visible)
    faulty = {str(2 * fault + 1) for fault in faults}
    assert all(made_by(one) & faulty for one in named)


@pytest.mark.slow
def test_an_optimizer_that_steps_otherwise_is_found_behind_a_fault_of_the_model(
    tmp_path: Path,
) -> None:
    kinds = ["gelu", "tanh"]
    train(tmp_path, "a", net(kinds, ()))
    train(tmp_path, "b", net(kinds, [0]), graft="a", eps=1e-5)
    found = anchorlib.compare("a", "b", store=tmp_path)
    kinds_of = {(one.place.name, one.place.kind) for one in found.origins}
    assert ("1", "value") in kinds_of
    assert any(kind == "updated" for _, kind in kinds_of)
    plain = anchorlib.compare("a", train(tmp_path, "c", net(kinds, [0]), eps=1e-5), store=tmp_path)
    assert not any(one.place.kind == "updated" for one in plain.origins)


@pytest.mark.slow
def test_a_rerun_that_differs_in_nothing_is_identical_and_was_handed_everything(
    tmp_path: Path,
) -> None:
    train(tmp_path, "a", net(["gelu", "tanh"], ()))
    train(tmp_path, "b", net(["gelu", "tanh"], ()), graft="a")
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == "identical"
    header = anchorlib.open_run("b", store=tmp_path).header()
    records = sum(one.records for one in anchorlib.open_run("a", store=tmp_path).tensors())
    assert header["grafted"] == "a"
    assert header["grafted.not_handed_over"] == {}
    assert header["grafted.handed_over"] > 0.9 * records


def test_what_the_rerun_goes_on_with_is_the_other_runs_to_the_bit(tmp_path: Path) -> None:
    model = net(["gelu"], ())
    train(tmp_path, "a", model)
    other = net(["gelu"], [0])
    train(tmp_path, "b", other, graft="a")
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_steps_limit_what_is_handed_over(tmp_path: Path) -> None:
    train(tmp_path, "a", net(["gelu"], ()))
    train(tmp_path, "b", net(["gelu"], [0]), graft="a", steps=range(1))
    first = anchorlib.open_run("a", store=tmp_path).series("2", "value")
    grafted = anchorlib.open_run("b", store=tmp_path).series("2", "value")
    assert first.at(step=0).raw.tobytes() == grafted.at(step=0).raw.tobytes()
    assert first.at(step=1).raw.tobytes() != grafted.at(step=1).raw.tobytes()


def test_what_cannot_be_handed_over_is_counted_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def step(width: int) -> None:
        x = torch.ones(width, requires_grad=True)
        y = anchorlib.anchor(x * 2, "y")
        anchorlib.anchor(torch.ones(1).expand(4), "overlapping")
        if width == 3:
            anchorlib.anchor(y + 1, "new")
        y.sum().backward()

    with anchorlib.start("a", store=tmp_path):
        step(2)
    with anchorlib.start("b", store=tmp_path) as session, anchorlib.graft("a"):
        step(3)
    assert session.counters.skipped == {}
    missing = anchorlib.open_run("b", store=tmp_path).header()["grafted.not_handed_over"]
    assert missing == {
        "y@value": "it has another shape or element type there",
        "y@grad": "it has another shape or element type there",
        "overlapping@value": "it is no dense array with memory of its own for each element",
        "new@value": "the other run has no record of it there",
    }
    assert "0 tensors took the values of a, 4 could not" in caplog.text


def test_a_difference_that_was_not_handed_over_explains_what_follows_it(tmp_path: Path) -> None:
    def record(run: str, factor: float, graft: str | None = None) -> None:
        with anchorlib.start(run, store=tmp_path):

            def forward() -> None:
                x = torch.full((64,), 1.5, requires_grad=True)
                # All elements share one number, so that nothing can be written into it.
                y = (x[:1] * factor).expand(64)
                y = anchorlib.anchor(y, "y")
                anchorlib.anchor(y * 3, "z").sum().backward()

            if graft is None:
                forward()
            else:
                with anchorlib.graft(graft):
                    forward()

    record("a", 1.0)
    record("b", 1.1, graft="a")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "z" not in {one.place.name for one in found.origins if one.place.kind == "value"}
    assert found.counts.differing >= 2


def test_graft_needs_a_session_and_a_run_and_is_not_nested(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="call start first"), anchorlib.graft("a"):
        pass
    train(tmp_path, "a", net([], ()))
    with anchorlib.start("b", store=tmp_path):
        with pytest.raises(RunNotFoundError), anchorlib.graft("nothing"):
            pass
        with pytest.raises(OptionError), anchorlib.graft("a", steps="no"):  # type: ignore[arg-type]
            pass
        with anchorlib.graft("a"), pytest.raises(SessionError), anchorlib.graft("a"):
            pass


def test_a_run_that_is_not_there_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANCHOR_GRAFT", "nothing")
    with pytest.raises(RunNotFoundError):
        anchorlib.start("b", store=tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("ANCHOR_GRAFT")
    anchorlib.start("b", store=tmp_path).close()


def test_a_run_does_not_go_on_with_its_own_values(tmp_path: Path) -> None:
    with (
        anchorlib.start("b", store=tmp_path),
        pytest.raises(SessionError, match="its own values"),
        anchorlib.graft("b"),
    ):
        pass


def test_a_session_that_is_closed_inside_or_killed_says_what_it_was_grafted_with(
    tmp_path: Path,
) -> None:
    train(tmp_path, "a", net([], ()))
    session = anchorlib.start("b", store=tmp_path)
    with anchorlib.graft("a"):
        session.flush()
        assert anchorlib.open_run("b", store=tmp_path).header()["grafted"] == "a"
        anchorlib.anchor(torch.ones(2), "new")
        session.close()
    header = anchorlib.open_run("b", store=tmp_path).header()
    assert list(header["grafted.not_handed_over"]) == ["new@value"]


PROGRAM = """
import sys, torch, anchorlib
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 8), torch.nn.GELU(approximate=sys.argv[1]), torch.nn.Linear(8, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with anchorlib.start("a") as session:
    session.watch(model, tensors="*", optimizer=optimizer)
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
print("trained")
"""


@pytest.mark.slow
def test_the_command_reruns_a_program_on_the_runs_values_and_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    there = {**os.environ, "ANCHOR_STORE": str(tmp_path)}
    python = warm_python()
    first = [python, program, "none"]
    subprocess.run(first, check=True, stdout=subprocess.DEVNULL, env=there)
    line = ("graft", "a", "--store", tmp_path, "--json")
    same = anchor(*line, "--", python, program, "none")
    assert (same.code, same.json["verdict"], same.json["b"]) == (0, "identical", "a-graft")
    other = anchor(*line, "--", python, program, "tanh")
    assert (other.code, other.json["verdict"]) == (1, "unexpected")
    assert other.json["origins"][0]["name"] == "1"
    by_path = ("graft", tmp_path / "a.zarr", "--json", "--", python, program, "tanh")
    assert anchor(*by_path).json["origins"] == other.json["origins"]
    failed = anchor(*line, "--", python, "-c", "raise SystemExit(3)")
    assert failed.code == 1
    assert "ended with exit code 3 under ANCHOR_GRAFT=a" in failed.err
    silent = anchor(*line, "--", python, "-c", "pass")
    assert silent.code == 1
    assert "a-graft" in silent.err
    assert "is an older run" in silent.err
