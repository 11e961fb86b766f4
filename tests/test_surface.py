"""The frozen surface: names that scripts outside this repository rely on."""

from __future__ import annotations

import inspect
import pickle

import pytest

import anchorlib
from anchorlib import errors
from anchorlib.capture.sessions.settings import StartArguments

PUBLIC = [
    "All",
    "AmbiguousTensorError",
    "AnchorError",
    "ClusterError",
    "CollectorError",
    "CommandError",
    "Comparison",
    "Coordinates",
    "DamagedError",
    "EveryN",
    "Final",
    "FlushTimeoutError",
    "InvalidNameError",
    "Log2Histogram",
    "MissingExtraError",
    "ModeError",
    "NotATensorError",
    "OptionError",
    "QueueFullError",
    "RaggedError",
    "Record",
    "Run",
    "RunBusyError",
    "RunExistsError",
    "RunNotFoundError",
    "Series",
    "Session",
    "SessionError",
    "StoreError",
    "Sum",
    "Summary",
    "TensorInfo",
    "UnknownDTypeError",
    "UnknownTensorError",
    "UnsupportedError",
    "ValuesNotKeptError",
    "__version__",
    "anchor",
    "compare",
    "graft",
    "log2_histogram",
    "noise",
    "open_run",
    "outliers",
    "print_tensor",
    "replay",
    "start",
    "tensor_names",
]


def test_the_public_names_are_these():
    assert sorted(anchorlib.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(anchorlib, name) is not None
        assert name in dir(anchorlib)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = anchorlib.nonsense


SIGNATURES = {
    "start": "run=None, *, store=None, rank=None, ranks=None, tensors=None, mode=All, "
    "phases=None, steps=None, first_step=0, resume=False, overwrite=False, attributes=None, "
    "on_full=None, queue_bytes=268435456, max_bytes=None, durability='process', recorder=None",
    "anchor": "x, name, mode=None, *, grad=True",
    "print_tensor": "x, title='', print_gradient=True, summarise_threshold=1000, edge_items=3, "
    "max_line_width=80, digits=4, float_format='auto', separator=', ', open_bracket='(', "
    "close_bracket=')'",
    "tensor_names": "model, optimizer=None, prefix=''",
    "open_run": "run, store=None",
    "compare": "a, b, *, store=None, noise=(), reference=None, tensors='*', names=None, "
    "replay=False, ops=None, progress=None, over=None, beforehand=None",
    "outliers": "run, *, store=None, tensors='*'",
    "Comparison.page": "self, *, height=900",
    "Session.watch": "self, model, *, tensors=None, mode=None, phases=None, steps=None, "
    "optimizer=None, prefix=''",
    "Session.trace": "self, steps=2, *, digests='both', compiled=True, values=()",
    "Run.ops": "self, stage=None, module=None, step=None, *, rank=None",
    "Session.step": "self, number=None",
    "Session.phase": "self, name",
    "Session.tensors": "self",
    "Session.latest": "self, name, kind='value'",
    "Session.flush": "self, timeout=None",
    "Session.close": "self, timeout=30",
}


def bare(signature):
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = str(inspect.Signature(parameters)).strip("()")
    return text.replace("<class 'anchorlib.modes.All'>", "All")


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures_are_as_the_contract_says(path):
    found = anchorlib
    for part in path.split("."):
        found = getattr(found, part)
    assert bare(inspect.signature(found)) == SIGNATURES[path].strip("()")


def test_what_start_takes_is_what_options_hold():
    taken, held = (
        [(one.name, one.default) for one in inspect.signature(kind).parameters.values()]
        for kind in (anchorlib.start, StartArguments)
    )
    assert taken == held


def test_tensor_info_has_the_contracts_fields():
    fields = list(anchorlib.TensorInfo.__dataclass_fields__)
    expected = "name, kind, mode, dtype, shape, ranks, records, first_step, last_step, bytes"
    assert ", ".join(fields[:10]) == expected


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_are_anchor_errors_and_stdlib_errors_and_survive_pickling(name):
    kind = getattr(errors, name)
    error = kind("what, where, what to do")
    assert isinstance(error, anchorlib.AnchorError)
    assert str(error) == "what, where, what to do"
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (kind, str(error))
    if name != "AnchorError":
        assert any(
            base.__module__ == "builtins" and base not in (Exception, BaseException, object)
            for base in kind.__mro__
        )
        assert getattr(anchorlib, name) is kind
