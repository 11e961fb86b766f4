"""The right value and gradient in the situations that PyTorch users meet."""

from __future__ import annotations

import copy
import io
import threading

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import anchorlib
from anchorlib.record import Flag
from anchorlib.store import LocalLocation, RankReader
from tests.recording import recording


def block(h, w):
    h = torch.tanh(h @ w)
    anchorlib.anchor(h, "b")
    return h.sin()


def comparable(run):
    return {(r.name, r.kind, r.coordinates): r.raw.tobytes() for r in run.sink.records}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
def test_activation_checkpointing_records_nothing_twice_and_every_gradient(reentrant, calls):
    torch.manual_seed(0)
    w = torch.randn(5, 5, requires_grad=True)
    x = torch.randn(4, 5, requires_grad=True)

    def segment(h, w):
        for _ in range(calls):
            h = block(h, w)
        return h

    def training(checkpointed):
        with recording() as run:
            for _ in range(2):
                h = x
                for _ in range(3):
                    if checkpointed:
                        h = torch.utils.checkpoint.checkpoint(
                            segment, h, w, use_reentrant=reentrant
                        )
                    else:
                        h = segment(h, w)
                h.sum().backward()
                run.session.step()
        return comparable(run)

    assert training(True) == training(False)


def test_nested_and_selective_checkpointing():
    w = torch.randn(5, 5, requires_grad=True)
    x = torch.randn(4, 5, requires_grad=True)
    checkpoint = torch.utils.checkpoint.checkpoint
    aten = torch.ops.aten

    def saving():
        return torch.utils.checkpoint.create_selective_checkpoint_contexts(
            [aten.mm.default, aten.clone.default, aten.detach.default]
        )

    with recording() as run:
        inner = lambda h, w: checkpoint(block, h, w, use_reentrant=False).cos()  # noqa: E731
        checkpoint(inner, x, w, use_reentrant=False).sum().backward()
        run.session.step()
        h = checkpoint(block, x, w, use_reentrant=False, context_fn=saving)
        checkpoint(block, h, w, use_reentrant=False, context_fn=saving).sum().backward()
    assert run.at("b") == [(0, 0, 0), (1, 0, 0), (1, 0, 1)]
    assert run.at("b", "grad") == [(0, 0, 0), (1, 0, 1), (1, 0, 0)]


def test_retain_graph_non_scalar_and_double_backward():
    w = torch.randn(3, requires_grad=True)
    with recording() as run:
        h = w * w
        anchorlib.anchor(h, "h")
        h.backward(torch.arange(3.0), retain_graph=True)
        h.backward(torch.ones(3), retain_graph=True)
        (g,) = torch.autograd.grad(h.pow(2).sum(), w, create_graph=True)
        g.sum().backward()
    gradients = run.arrays("h", "grad")
    assert gradients[0].tolist() == [0.0, 1.0, 2.0]
    assert gradients[1].tolist() == [1.0, 1.0, 1.0]
    assert np.allclose(gradients[2], (2 * w * w).detach().numpy())
    assert len(gradients) == 4
    assert set(run.at("h", "grad")) == {(0, 0, 0)}


def test_autograd_grad_fires_what_is_on_its_path():
    w = torch.randn(3, requires_grad=True)
    with recording() as run:
        h = w * 2
        anchorlib.anchor(h, "h")
        q = h * 2
        anchorlib.anchor(q, "q")
        anchorlib.anchor(h * 5, "off")
        loss = q.sum()
        seen = []
        for target in (w, h, q):
            torch.autograd.grad(loss, target, retain_graph=True)
            names = [r.name for r in run.sink.records if r.kind == "grad"]
            run.session._queue.flush(5)
            names = [r.name for r in run.sink.records if r.kind == "grad"]
            seen.append(names)
    assert seen == [["q", "h"], ["q", "h", "q", "h"], ["q", "h", "q", "h", "q"]]


def test_an_anchor_inside_a_custom_backward_is_recorded_in_the_pass_it_belongs_to():
    class Tanh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.tanh(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return anchorlib.anchor(g * (1 - y * y), "inside")

    w = torch.randn(3, requires_grad=True)
    with recording() as run:
        for _ in range(2):
            h = w * 2
            anchorlib.anchor(h, "h")
            out = Tanh.apply(h)
            anchorlib.anchor(out, "out")
            out.sum().backward()
    assert run.at("inside") == [(0, 0, 0), (0, 1, 0)]
    assert run.at("h") == [(0, 0, 0), (0, 1, 0)]
    assert np.array_equal(run.arrays("inside")[0], run.arrays("h", "grad")[0])


def test_what_users_keep_on_a_tensor_is_not_taken_for_a_part_of_it():
    model = torch.nn.Linear(2, 2)
    for x in model.parameters():
        x._local_tensor, x.placements = torch.zeros(7), ["mine"]
    with recording() as run:
        run.session.watch(model, tensors=["weight", "weight@pass_grad"])
        anchorlib.anchor(model.bias, "b")
        model(torch.ones(1, 2)).sum().backward()
    assert run.arrays("b")[0].tolist() == model.bias.tolist()
    assert run.arrays("weight")[0].tolist() == model.weight.tolist()
    assert run.arrays("weight", "pass_grad")[0].tolist() == [[1, 1], [1, 1]]
    assert not [name for name in run.names() if "placements" in name]


def test_threads_record_their_own():
    w = torch.randn(3, 5, requires_grad=True)

    def work(n):
        for _ in range(20):
            h = torch.tanh(torch.randn(4, 3) @ w)
            anchorlib.anchor(h, f"h{n}")
            h.sum().backward()

    with recording() as run:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for n in range(4):
        assert len(run.records(f"h{n}")) == len(run.records(f"h{n}", "grad")) == 20
    assert not run.session.counters.skipped


def test_backward_in_another_thread():
    w = torch.randn(3, requires_grad=True)
    with recording() as run:
        h = w * 2
        anchorlib.anchor(h, "h")
        thread = threading.Thread(target=lambda: h.sum().backward())
        thread.start()
        thread.join()
    assert run.at("h", "grad") == [(0, 0, 0)]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_offloading_flop_counting_and_a_default_device():
    from torch.utils.flop_counter import FlopCounterMode

    w = torch.randn(3, 3, requires_grad=True)
    with recording() as run:
        for n, context in enumerate(
            (
                torch.autograd.detect_anomaly(),
                torch.autograd.graph.save_on_cpu(),
                FlopCounterMode(display=False),
            )
        ):
            with context:
                h = torch.tanh(w @ w)
                anchorlib.anchor(h, f"h{n}")
                h.sum().backward()
        with torch.device("meta"):
            anchorlib.anchor(torch.ones(3, device="cpu"), "plain")
    for n in range(3):
        assert len(run.records(f"h{n}")) == len(run.records(f"h{n}", "grad")) == 1
    assert run.arrays("plain")[0].tolist() == [1, 1, 1]


def test_autocast_records_the_dtype_that_was_computed():
    w = torch.randn(3, 3, requires_grad=True)
    with recording() as run, torch.autocast("cpu", dtype=torch.bfloat16):
        h = w @ w
        anchorlib.anchor(h, "h")
        h.float().sum().backward()
    assert run.records("h")[0].dtype == run.records("h", "grad")[0].dtype == "bfloat16"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_functorch_transforms_record_the_tensors_inside():
    w = torch.randn(3, 5)

    def f(x):
        h = torch.tanh(x @ w)
        anchorlib.anchor(h, "h")
        return (h * h).sum()

    with recording() as run:
        torch.func.vmap(f)(torch.randn(7, 3))
        assert run.records("h")[-1].shape == (7, 5)
        torch.func.grad(f)(torch.randn(3))
        assert [r.shape for r in run.records("h", "grad")] == [(5,)]
        torch.func.vjp(f, torch.randn(3))[1](torch.tensor(1.0))
        torch.func.jacrev(f)(torch.randn(3))
        torch.func.jvp(f, (torch.randn(3),), (torch.randn(3),))
    assert not run.session.counters.skipped


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_ad():
    import torch.autograd.forward_ad as forward_ad

    with recording() as run, forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        anchorlib.anchor(dual, "x")
        assert forward_ad.unpack_dual(dual).tangent is not None
    assert run.arrays("x")[0].tolist() == [1.0, 1.0]


def test_sparse_tensors_are_recorded_as_their_parts():
    embedding = nn.Embedding(10, 3, sparse=True)
    with recording() as run:
        run.session.watch(embedding, tensors=["weight@pass_grad"])
        embedding(torch.tensor([4, 4, 2])).sum().backward()
    assert not embedding.weight.grad.is_coalesced()
    assert run.arrays("weight:indices", "pass_grad")[0].tolist() == [[4, 4, 2]]
    assert run.arrays("weight:values", "pass_grad")[0].tolist() == [[1.0] * 3] * 3


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_compressed_and_nested_tensors_are_recorded_as_their_parts():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    with recording() as run:
        anchorlib.anchor(torch.eye(3).to_sparse_csr(), "csr")
        anchorlib.anchor(nested, "nested")
    assert run.names() == [
        "csr:crow_indices@value",
        "csr:col_indices@value",
        "csr:values@value",
        "nested:offsets@value",
        "nested:values@value",
    ]
    assert run.records("nested:values")[0].shape == (6, 3)
    assert run.arrays("nested:offsets")[0].tolist() == [0, 2, 6]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("transposed", [False, True])
def test_strided_nested_tensors_are_recorded_as_sizes_and_values(transposed, caplog):
    leaf = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)], requires_grad=True)
    x = leaf.transpose(1, 2) if transposed else leaf * 2
    with recording() as run:
        anchorlib.anchor(x, "x")
        anchorlib.anchor(torch.nested.nested_tensor([]), "empty")
        sum(one.sum() for one in x.unbind()).backward()
    sizes = [[3, 2], [3, 4]] if transposed else [[2, 3], [4, 3]]
    assert run.arrays("x:sizes")[0].tolist() == sizes
    assert run.arrays("x:values")[0].tolist() == [1.0 if transposed else 2.0] * 6 + [0.0] * 12
    assert run.arrays("x:sizes", "grad")[0].tolist() == sizes
    assert run.arrays("x:values", "grad")[0].tolist() == [1.0] * 18
    assert run.arrays("empty:values")[0].tolist() == []
    assert (run.session.counters.gaps, run.session.counters.skipped, caplog.text) == (0, {}, "")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_run_with_nested_tensors_is_read_with_its_lineage(layout, tmp_path, caplog):
    linear = nn.Linear(4, 4)
    with anchorlib.start("run1", store=tmp_path) as session:
        session.watch(linear)
        for rows in range(2, 6):
            batch = [torch.ones(2, 4), torch.ones(rows, 4)]
            y = linear(torch.nested.nested_tensor(batch, layout=layout))
            anchorlib.anchor(y, "y")
            sum(one.sum() for one in y.unbind()).backward()
    reader = RankReader(LocalLocation(tmp_path / "run1.zarr"), 0)
    stated = {one.name: one for one in reader.catalogue.edges.values()}
    assert [parent.name for parent in stated["y"].parents] == ["output"]
    assert {parent.name for parent in stated["output"].parents} >= {"weight", "bias"}
    assert not [one for one in caplog.messages if "not known" in one or "not kept" in one]
    assert len(anchorlib.open_run("run1", tmp_path)["y:values@value"]) == 4


def test_fake_tensors_and_traced_code_are_skipped_and_counted():
    from torch._subclasses import FakeTensorMode

    with recording() as run, FakeTensorMode():
        anchorlib.anchor(torch.empty(3) + 1, "fake")
    assert run.names() == []
    assert run.session.counters.skipped == {"fake": 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_is_skipped_and_counted():
    with recording() as run:
        f = torch.jit.trace(
            lambda x: anchorlib.anchor(torch.tanh(x), "j") * 2, torch.ones(2), check_trace=False
        )
        f(torch.ones(2))
    assert run.names() == []
    assert run.session.counters.skipped == {"jit.trace": 1}


def test_symbolic_tracing_is_skipped_and_counted():
    class Net(nn.Module):
        def forward(self, x):
            h = anchorlib.print_tensor(torch.tanh(x), "h")
            return anchorlib.anchor(h, "h") * 2

    with recording() as run:
        traced = torch.fx.symbolic_trace(Net())
        assert traced(torch.zeros(2)).tolist() == [0.0, 0.0]
        with pytest.raises(anchorlib.NotATensorError):
            anchorlib.anchor(traced, "no tensor")
    assert run.names() == []
    assert run.session.counters.skipped == {"tracing": 1}


def test_an_unknown_subclass_is_refused_at_an_anchor_and_counted_at_a_hook():
    from torch.testing._internal.two_tensor import TwoTensor

    two = TwoTensor(torch.ones(2), torch.ones(2))
    with recording() as run:
        with pytest.raises(anchorlib.UnsupportedError, match="TwoTensor"):
            anchorlib.anchor(two, "x")
        model = nn.Identity()
        run.session.watch(model)
        model(two)
    assert sum(run.session.counters.skipped.values()) == 1


def test_a_watched_model_may_be_copied_and_pickled_and_the_copy_rests():
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors="*", optimizer=optimizer)
        copied = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        copy.deepcopy(optimizer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        copied(torch.ones(1, 2))
        loaded(torch.ones(1, 2))
        assert run.names() == []
        model(torch.ones(1, 2))
        assert "0@value" in run.names()


@pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning")
def test_a_watched_model_and_its_copy_can_be_compiled_as_torchscript_and_record_on():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with recording() as run:
        run.session.watch(model, tensors=["0", "output"])
        for one in (model, copy.deepcopy(model)):
            script = torch.jit.script(one)
            assert torch.equal(script(torch.ones(1, 2)), one[1](one[0](torch.ones(1, 2))))
        model(torch.ones(1, 2))
        assert run.names().count("output@value") == 1


@pytest.mark.filterwarnings("ignore:.*jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2, 3))])
def test_torchscript_is_watched_from_outside(make):
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = nn.Sequential(make(inner), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with recording() as run:
        run.session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            model(torch.eye(3)[:2]).sum().backward()
            optimizer.step()
    for name, kind in (("0", "value"), ("0", "grad"), ("0.1.running_mean", "value")):
        assert len(run.records(name, kind)) == 2
    assert len(run.records("0.0.weight", "delta")) == 2
    assert "0.0@value" not in run.names()  # what runs inside a script has no hooks
    assert not run.session.counters.skipped


def scaled_training(kind, fused, steps=3, bad=(1,)):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    raw = []
    with recording() as run:
        run.session.watch(model, tensors=["weight", "output@grad"], optimizer=optimizer)
        for step in range(steps):
            optimizer.zero_grad()
            factor = float("inf") if step in bad else 1.0
            loss = (model(torch.randn(4, 3)) * factor).pow(2).sum()
            scaler.scale(loss).backward()
            raw.append(model.weight.grad.clone())
            scaler.step(optimizer)
            scaler.update()
    return run, raw


SCALED = pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
STEPPED = pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW], ids=lambda k: k.__name__
)


@SCALED
@STEPPED
def test_mixed_precision_records_unscaled_gradients_and_the_scale(kind, fused):
    run, raw = scaled_training(kind, fused)
    assert run.at("weight", "grad") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    consumed = run.records("weight", "grad")
    assert np.allclose(consumed[0].array, raw[0].numpy() / 1024)
    per_pass = run.records("weight", "pass_grad")
    assert [r.scale for r in per_pass] == [1024.0, 1024.0, 512.0]
    assert all(Flag.SCALED in r.flags for r in per_pass)
    assert [r.scale for r in run.records("output", "grad")] == [1024.0, 1024.0, 512.0]


@SCALED
@STEPPED
def test_a_step_that_the_scaler_skips_is_seen_with_its_non_finite_gradients(kind, fused):
    run, _ = scaled_training(kind, fused)
    rows = run.records("weight", "grad")
    assert [Flag.STEP_SKIPPED in r.flags for r in rows] == [False, True, False]
    assert rows[1].summary.nan + rows[1].summary.inf > 0
    updated = {r.coordinates.step: r for r in run.records("weight", "delta")}
    assert 1 not in updated or not updated[1].array.any()


def test_a_scaler_that_is_not_enabled_changes_nothing(caplog):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with recording() as run:
        run.session.watch(model, tensors=["weight"], optimizer=optimizer)
        for _ in range(2):
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert run.at("weight", "grad") == [(0, 0, 0), (1, 0, 0)]
    assert [r.scale for r in run.records("weight", "pass_grad")] == [1.0, 1.0]
    assert (run.session.counters.gaps, run.session.counters.skipped, caplog.text) == (0, {}, "")


def test_grad_scaler_is_left_as_it_was():
    from torch.amp.grad_scaler import GradScaler

    before = (GradScaler.scale, GradScaler.step)
    with recording():
        assert GradScaler.step is not before[1]
    assert (GradScaler.scale, GradScaler.step) == before


def test_clipping_is_seen_before_and_after():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors=["weight"], optimizer=optimizer)
        model(torch.ones(4, 3)).sum().backward()
        norm = model.weight.grad.norm().item()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    assert np.isclose(np.linalg.norm(run.arrays("weight", "pass_grad")[0]), norm)
    assert np.linalg.norm(run.arrays("weight", "grad")[0]) < 0.1001


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_parametrised_weights_have_the_names_of_their_parts():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    with recording() as run:
        run.session.watch(model, tensors="*")
        model(torch.ones(1, 3)).sum().backward()
    assert "0.parametrizations.weight.original0@pass_grad" in run.names()
    assert "0.weight@value" not in run.names()


def test_tied_weights_are_one_parameter_and_their_gradient_is_the_sum():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    with recording() as run:
        run.session.watch(model, tensors=["*weight@pass_grad"])
        model(torch.ones(2, 4)).sum().backward()
    assert run.names() == ["0.weight@pass_grad"]
    assert np.array_equal(run.arrays("0.weight", "pass_grad")[0], model[0].weight.grad.numpy())


def test_an_rnn_cell_is_a_call_for_each_step_of_time():
    cell = nn.RNNCell(3, 4)
    with recording() as run:
        run.session.watch(cell, tensors=["output", "weight_hh@pass_grad"])
        h = torch.zeros(2, 4)
        for _ in range(5):
            h = cell(torch.randn(2, 3), h)
        h.sum().backward()
    assert run.at("output") == [(0, 0, n) for n in range(5)]
    assert run.at("output", "grad") == [(0, 0, n) for n in reversed(range(5))]
    assert run.at("weight_hh", "pass_grad") == [(0, 0, 0)]


MAKES = [{"foreach": False}, {"foreach": True}, {"fused": True}]


@pytest.mark.parametrize("options", MAKES, ids=str)
@pytest.mark.parametrize(
    ("kind", "key", "more"),
    [
        (torch.optim.Adam, "exp_avg", {}),
        (torch.optim.AdamW, "max_exp_avg_sq", {"amsgrad": True}),
        (torch.optim.SGD, "momentum_buffer", {"momentum": 0.9}),
    ],
    ids=["Adam", "AdamW", "SGD"],
)
def test_every_make_of_an_optimizer_is_observed(kind, key, more, options):
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, **more, **options)
    with recording() as run:
        run.session.watch(model, tensors=["weight"], optimizer=optimizer)
        run.session.watch(model, tensors=["weight@opt.*"], optimizer=optimizer)
        before = model.weight.detach().clone()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    assert np.array_equal(run.arrays("weight", "updated")[0], model.weight.detach().numpy())
    assert np.array_equal(
        run.arrays("weight", "delta")[0], (model.weight.detach() - before).numpy()
    )
    state = optimizer.state[model.weight][key]
    assert np.array_equal(run.arrays("weight", f"opt.{key}")[0], state.numpy())
    assert np.array_equal(run.arrays("weight", "grad")[0], model.weight.grad.numpy())


def test_an_average_of_a_watched_model_is_watched_under_its_own_prefix():
    model = nn.Linear(3, 2)
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors=["weight@updated", "output"], optimizer=optimizer)
        run.session.watch(ema, tensors=["ema.module.weight", "ema.output"], prefix="ema")
        for _ in range(3):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
            ema.update_parameters(model)
            with torch.no_grad():
                ema(torch.ones(4, 3))
    updated, averages = run.arrays("weight", "updated"), run.arrays("ema.module.weight")
    assert np.array_equal(averages[1], updated[0])  # torch copies the first
    assert np.allclose(averages[2], (updated[0] + updated[1]) / 2)
    assert [r.coordinates.phase for r in run.records("ema.output")] == ["train"] * 3


def test_retain_grad_and_an_anchor_do_not_disturb_each_other():
    w = torch.ones(2, requires_grad=True)
    with recording() as run:
        h = w * 2
        h.retain_grad()
        anchorlib.anchor(h, "h")
        h.register_hook(lambda g: g * 10)
        (h * 3).sum().backward()
    assert run.arrays("h", "grad")[0].tolist() == [3.0, 3.0]
    assert h.grad.tolist() == [30.0, 30.0]  # torch's own comes last, wherever it was asked for
    assert w.grad.tolist() == [60.0, 60.0]


class OnAccelerator(torch.Tensor):
    """Says that it is on an accelerator, which this machine need not have."""

    is_cuda = True


def test_capturing_a_cuda_graph_is_refused_and_says_what_to_do(monkeypatch, capsys):
    x = torch.ones(2).as_subclass(OnAccelerator)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with recording() as run:
        with pytest.raises(anchorlib.UnsupportedError, match=r"anchor outside .* torch\.compile"):
            anchorlib.anchor(x, "x")
        model = nn.Identity()
        run.session.watch(model)
        model(x)
        assert anchorlib.print_tensor(x, "x") is x
    assert run.names() == []
    assert sum(run.session.counters.skipped.values()) == 1
    assert "a CUDA graph is being captured" in capsys.readouterr().err


def test_tensors_that_a_watched_model_swaps_are_no_trouble():
    model = nn.Linear(2, 2)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with recording() as run:
            run.session.watch(model, tensors="*")
            anchorlib.anchor(model.weight, "w")
            model(torch.ones(1, 2)).sum().backward()
            model.to(torch.float64)
            model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert len(run.records("output")) == 2
