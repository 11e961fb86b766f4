"""Of dynamo nothing is loaded for our sake, and what it has moved is said where it is asked for."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from anchorlib import torch_private
from anchorlib.torch_private import DOORS, door, dynamo


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch, caplog):
    monkeypatch.setattr(door, "_logged", set())
    caplog.set_level(logging.WARNING, "anchorlib")


def put(monkeypatch, name, **attributes):
    """A module of torch's that has these attributes alone."""
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.mark.parametrize(
    ("name", "ask", "answer"),
    [
        ("compiled_autograd.compiled_autograd_enabled", "hide_compiled_autograd", False),
        ("compiled_autograd.in_compiled_autograd_region", "backward_of_compiled_autograd", False),
        ("utils.counters", "count_compiled", 0),
    ],
)
def test_what_dynamo_has_moved_is_said_once(monkeypatch, caplog, name, ask, answer):
    full = f"torch._dynamo.{name}"
    put(monkeypatch, full.rpartition(".")[0])
    for _ in range(2):
        assert getattr(torch_private, ask)() is answer or getattr(torch_private, ask)() == answer
    assert caplog.messages == [f"anchorlib: {DOORS[full].said}"]


@pytest.mark.parametrize(
    ("name", "ask", "answer"),
    [
        ("_dynamo.compiled_autograd.compiled_autograd_enabled", "hide_compiled_autograd", False),
        (
            "_dynamo.compiled_autograd.in_compiled_autograd_region",
            "backward_of_compiled_autograd",
            False,
        ),
        ("_dynamo.utils.counters", "count_compiled", 0),
        ("_inductor.config.emulate_precision_casts", "emulates_precision", None),
    ],
)
def test_what_has_become_a_thing_of_another_kind_is_left_alone_and_said(
    monkeypatch, caplog, name, ask, answer
):
    full = f"torch.{name}"
    holder, _, last = full.rpartition(".")
    module = put(monkeypatch, holder, **{last: print})
    monkeypatch.setattr(door, "_others", {})
    for _ in range(2):
        assert getattr(torch_private, ask)() == answer
    assert getattr(module, last) is print
    version = f"torch {torch.__version__}"
    lost = DOORS[full].loss
    said = f"anchorlib: {version} has another {full}, of type builtin_function_or_method: {lost}"
    assert caplog.messages == [said]


def test_a_tracer_that_cannot_be_called_tells_of_no_function(monkeypatch, caplog):
    put(
        monkeypatch,
        "torch._dynamo.symbolic_convert",
        InstructionTranslator=SimpleNamespace(current_tx=7),
    )
    monkeypatch.setattr(door, "_others", {})
    assert list(torch_private.traced_functions()) == []
    assert "has another torch._dynamo.symbolic_convert.Instruction" in caplog.text


def test_inductor_may_have_moved_how_it_rounds(monkeypatch, caplog):
    put(monkeypatch, "torch._inductor.config")
    assert torch_private.emulates_precision() is None
    assert [DOORS["torch._inductor.config.emulate_precision_casts"].said in caplog.text] == [True]


def test_where_dynamo_hides_what_it_compiled_all_is_compiled_anew(monkeypatch, caplog):
    resets = []
    put(monkeypatch, "torch._dynamo", reset=lambda: resets.append(1))
    put(monkeypatch, "torch._dynamo.convert_frame")
    assert torch_private.forget_compiled()
    assert resets == [1]
    assert DOORS["torch._dynamo.convert_frame.input_codes"].said in caplog.text


@pytest.mark.parametrize("fault", [AttributeError, TypeError])
def test_a_compiled_models_hooks_stay_outside_where_dynamo_takes_no_such_setting(
    monkeypatch, caplog, fault
):
    class OptimizedModule:
        forward = None

    def patch(**_settings):
        raise fault("wrap_top_frame")

    config = SimpleNamespace(patch=patch)
    put(monkeypatch, "torch._dynamo", OptimizedModule=OptimizedModule, config=config)
    assert torch_private.compile_hooks_of(OptimizedModule()) is None
    assert DOORS["torch._dynamo.OptimizedModule._initialize"].said in caplog.text


def test_a_dynamo_without_a_tracer_tells_of_no_function(monkeypatch, caplog):
    put(monkeypatch, "torch._dynamo.symbolic_convert")
    assert list(torch_private.traced_functions()) == list(torch_private.enclosing_operators()) == []
    assert torch_private.tracing_backend() == ""
    tracer = "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx"
    assert caplog.messages == [f"anchorlib: {DOORS[tracer].said}"]


def test_a_backend_that_is_wrapped_under_another_name_has_no_name(monkeypatch):
    output = SimpleNamespace(compiler_fn=lambda: None)
    monkeypatch.setattr(dynamo, "_output", lambda: output)
    assert torch_private.tracing_backend() == ""


@pytest.mark.slow
def test_no_compiler_is_loaded_for_our_sake():
    program = (
        "import sys, anchorlib.capture, anchorlib.torch_private as ours\n"
        "ours.forget_compiled(), ours.count_compiled(), ours.emulates_precision()\n"
        "print([m for m in ('torch._dynamo', 'torch._inductor', 'sympy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_graphs_lines_may_be_hidden():
    module = torch.fx.symbolic_trace(lambda x: x + x)
    assert torch_private.node_lines(module) is not None
    module._lineno_map, lines = 7, module._lineno_map
    assert torch_private.node_lines(module) is None
    module._lineno_map = lines
    del module._prologue_start
    assert torch_private.node_lines(module) is None
