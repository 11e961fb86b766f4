"""What the modules of a run were made with stands in its header, and in compare's answer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.capture.headers.module_texts import MOST_MODULES, MOST_TEXT, module_texts
from anchorlib.diagnosis.causes import made_otherwise


class Rude(nn.Module):
    def extra_repr(self) -> str:
        raise RuntimeError("not now")


class Long(nn.Module):
    def extra_repr(self) -> str:
        return "many\nlines, " * 1000


def test_the_modules_that_hold_no_others_are_told():
    model = nn.Sequential(nn.LayerNorm(4, eps=0.5), nn.Sequential(nn.Dropout(0.25)))
    modules = {name: one for name, one in model.named_modules() if name}
    assert module_texts(modules) == {
        "module.0": "LayerNorm((4,), eps=0.5, elementwise_affine=True, bias=True)",
        "module.1.0": "Dropout(p=0.25, inplace=False)",
    }


class Norm(nn.Module):
    """As most are written by hand: it prints nothing of itself."""

    def __init__(self, eps: float, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.eps, self.affine, self.how = eps, True, "rms"
        self.api_key, self._cache, self.sizes, self.inner = "hunter2", 3, [1], inner

    @property
    def slow(self):
        raise RuntimeError("never asked")


def test_what_a_module_of_the_users_keeps_is_told_but_for_secrets():
    told = module_texts({"norm": Norm(1e-6), "block": Norm(0.5, nn.ReLU())})
    assert told == {
        "module.norm": "Norm(eps=1e-06, affine=True, how='rms', api_key='***')",
        "module.block": "Norm(eps=0.5, affine=True, how='rms', api_key='***')",
    }


def test_what_a_module_prints_of_itself_is_told_once():
    class Printing(Norm):
        def extra_repr(self) -> str:
            return "8, eps=0.001"

    assert module_texts({"norm": Printing(1e-3)})["module.norm"].count("eps=") == 1


def test_what_a_module_says_is_one_short_line_or_nothing():
    told = module_texts({"rude": Rude(), "long": Long()})
    assert told["module.rude"] == "Rude(…)"
    assert len(told["module.long"]) == MOST_TEXT
    assert "\n" not in told["module.long"]


def test_the_modules_of_a_giant_are_told_up_to_a_number():
    every = {f"m{n}": nn.Identity() for n in range(MOST_MODULES + 5)}
    assert len(module_texts(every)) == MOST_MODULES


@pytest.mark.parametrize(
    ("a", "b", "made"),
    [
        ("BatchNorm(4, eps=0.5)", "BatchNorm(4, eps=0.5)", None),
        ("BatchNorm(4, eps=0.5)", "BatchNorm(4, eps=0.1)", ("BatchNorm eps 0.5", "0.1")),
        ("GELU(approximate='none')", "ReLU()", ("GELU(approximate='none')", "ReLU()")),
        ("Conv2d(3, 8, bias=False)", "Conv2d(3, 8)", ("Conv2d bias=False", "without it")),
        ("Linear((2, 3))", "Linear((3, 2))", ("Linear (2, 3)", "(3, 2)")),
        ("M(1, 1)", "M(1)", ("M(1, 1)", "M(1)")),
        ("M()", None, None),
    ],
)  # fmt: skip
def test_of_two_modules_is_said_what_they_were_made_with_otherwise(a, b, made):
    assert made_otherwise(a, b) == made


def trained(folder, name: str, eps: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=eps))
    with anchorlib.start(name, store=folder) as session:
        session.watch(model, tensors="*")
        model(torch.randn(16, 8)).sum().backward()


@pytest.mark.slow
def test_compare_says_what_the_module_of_an_origin_was_made_with(tmp_path):
    trained(tmp_path, "a", 1e-5)
    trained(tmp_path, "b", 0.1)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].place.name == "1"
    assert "LayerNorm eps 1e-05 | 0.1" in found.sentence
    assert "module.1" in found.config_diff
    assert "module.0" not in found.config_diff


class Scaled(nn.Module):
    """A norm that nobody anchored, between two that were."""

    def __init__(self, eps: float, drop: bool = False) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.LayerNorm(8, eps=eps)
        if drop:
            self.drop = nn.Identity()

    def forward(self, x):
        return self.norm(self.fc(x)).tanh()


def test_a_module_that_is_no_origin_is_named_where_it_was_made_otherwise(tmp_path):
    for name, eps in (("a", 1e-5), ("b", 0.01)):
        torch.manual_seed(0)
        model = Scaled(eps)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(model, tensors=["output", "fc"])
            model(torch.randn(16, 8)).sum().backward()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].place.name == "output"
    assert "the modules were made otherwise (norm: LayerNorm eps 1e-05 | 0.01)" in found.sentence


@pytest.mark.slow
def test_modules_of_one_run_alone_are_told_by_the_digest_of_the_tree(tmp_path):
    for name, drop in (("a", False), ("again", False), ("b", True)):
        torch.manual_seed(0)
        model = Scaled(1e-5, drop)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(model)
            model(torch.randn(16, 8)).sum().backward()
    trees = [anchorlib.open_run(name, tmp_path).header()["modules"] for name in ("a", "b")]
    assert trees[0] != trees[1]
    assert [tree.partition(",")[0] for tree in trees] == ["3 modules", "4 modules"]
    assert not anchorlib.compare("a", "again", store=tmp_path).config_diff
    differs = anchorlib.compare("a", "b", store=tmp_path).config_diff
    assert differs["modules"] == tuple(trees)
    assert differs["module.drop"] == (None, "Identity()")
