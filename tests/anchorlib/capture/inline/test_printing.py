"""print_tensor."""

import contextlib
import io
import pickle
import sys
import threading

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from anchorlib.capture.inline.printing import print_tensor
from anchorlib.errors import NotATensorError, OptionError
from tests.recording import recording

FLOATS_OF_ONE_BYTE = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


@pytest.fixture
def stderr(capsys):
    return capsys


def printed(stderr):
    return stderr.readouterr().err


# Arguments and texts are those of PopTorch's own test of ipu_print_tensor.
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("title", True, 1000, 3, 75, 8, "auto", " ", "{", "}"),
            "title: {\n {1.4962566 1.7682219}\n {1.0884774 1.1320305}\n}\n",
        ),
        (
            ("title", True, 500, 2, 15, 8, "scientific", ",", "[", "]"),
            "title: [\n [1.4962566e+00,\n   1.7682219e+00]\n"
            " [1.0884774e+00,\n   1.1320305e+00]\n]\n",
        ),
        (
            ("title", True, 1500, 1, 125, 8, "fixed", ";", "(", ")"),
            "title: (\n (1.4962566;1.7682219)\n (1.0884774;1.1320305)\n)\n",
        ),
    ],
)
def test_the_text_is_that_of_poptorch(stderr, arguments, text):
    torch.manual_seed(0)
    print_tensor(torch.rand((2, 2)) + 1, *arguments)
    assert printed(stderr) == text


def test_it_returns_the_tensor_itself(stderr):
    for x in (
        torch.ones(2),
        torch.ones(2, requires_grad=True),
        torch.ones(2, requires_grad=True) * 2,
    ):
        assert print_tensor(x, "x") is x


def test_the_value_is_printed_now_and_the_gradient_in_backward(stderr):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    print_tensor(x * 3, "unused")
    hidden = x * 2
    print_tensor(hidden, "hidden")  # the return value is ignored
    loss = print_tensor(hidden.sum(), "loss")
    assert printed(stderr) == "unused: (3.000, 6.000)\nhidden: (2.000, 4.000)\nloss: 6.000\n"
    loss.backward()
    assert printed(stderr) == "loss_gradient: 1.000\nhidden_gradient: (1.000, 1.000)\n"
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_without_a_title_it_is_a_tensor(stderr):
    x = torch.ones((), requires_grad=True)
    print_tensor(x * 1).backward()
    assert printed(stderr) == "Tensor: 1.000\nTensor_gradient: 1.000\n"


def test_a_title_does_not_act_on_the_terminal(stderr):
    x = torch.ones(1, requires_grad=True)
    print_tensor(x * 1, "a\x1b[31mb\u202e\nc").backward()
    assert printed(stderr) == (
        "a\\x1b[31mb\\u202e\\nc: (1.000)\na\\x1b[31mb\\u202e\\nc_gradient: (1.000)\n"
    )


def test_the_gradient_can_be_left_out(stderr):
    x = torch.ones((), requires_grad=True)
    print_tensor(x * 1, "x", print_gradient=False).backward()
    assert printed(stderr) == "x: 1.000\n"


def test_the_gradient_is_that_after_hooks_registered_before(stderr):
    y = torch.ones((), requires_grad=True) * 1
    y.register_hook(lambda gradient: gradient * 2)
    print_tensor(y, "y")
    y.register_hook(lambda gradient: gradient * 2)
    y.backward()
    assert printed(stderr) == "y: 1.000\ny_gradient: 2.000\n"


def test_a_leaf_printed_again_and_again_prints_its_gradient_once_in_each_backward(stderr):
    w = torch.nn.Parameter(torch.ones(()))
    for _ in range(3):
        print_tensor(w, "w", digits=2)
        print_tensor(w, "w", digits=3)  # the newest form counts
        (w * 2).backward()
        assert printed(stderr) == "w: 1.0\nw: 1.00\nw_gradient: 2.00\n"
    print_tensor(w, "other")
    (w * 2).backward()
    assert printed(stderr) == "other: 1.000\nw_gradient: 2.00\nother_gradient: 2.000\n"


def test_a_leaf_stops_printing_its_gradient_when_told(stderr):
    w = torch.nn.Parameter(torch.ones(()))
    print_tensor(w, "w")
    print_tensor(w, "w", print_gradient=False)
    (w * 2).backward()
    assert printed(stderr) == "w: 1.000\nw: 1.000\n"
    assert not w._backward_hooks


def test_a_leaf_can_still_be_copied_saved_and_swapped(stderr):
    w = torch.ones(2, requires_grad=True)
    print_tensor(w, "w")
    assert pickle.loads(pickle.dumps(w)).tolist() == [1.0, 1.0]  # warns of hooks otherwise
    parameter = print_tensor(torch.nn.Parameter(torch.ones(2)), "parameter")
    torch.utils.swap_tensors(parameter, torch.nn.Parameter(torch.zeros(2)))


def test_training_is_bit_for_bit_what_it_is_without_printing(stderr):
    def train(show):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
        )
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            hidden = show(model[:2](show(torch.randn(5, 4))))
            show(model[0].weight)
            loss = show(model[2:](hidden).square().mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        values = [p.detach().numpy().tobytes() for p in model.parameters()]
        return values, torch.get_rng_state().numpy().tobytes()

    assert train(lambda x: x) == train(lambda x: print_tensor(x, "x"))
    assert printed(stderr).count("x_gradient") == 9


def test_one_tensor_is_one_write(monkeypatch):
    writes = []

    class Stream(io.StringIO):
        def write(self, text):
            writes.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Stream())
    x = torch.ones(2, 1, requires_grad=True) * 1
    print_tensor(x, "x")
    x.sum().backward()
    text = "(\n (1.000)\n (1.000)\n)\n"
    assert writes == [f"x: {text}", f"x_gradient: {text}"]


def test_threads_do_not_write_into_each_others_lines(stderr):
    def work(number):
        for _ in range(20):
            print_tensor(torch.full((2, 2), number), "x")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {f"x: (\n ({n}, {n})\n ({n}, {n})\n)" for n in range(4)}
    blocks = printed(stderr).removesuffix("\n)\n").split("\n)\n")
    assert len(blocks) == 80
    assert {f"{block}\n)" for block in blocks} == texts


@pytest.mark.parametrize("where", [torch.no_grad, torch.inference_mode])
def test_it_prints_where_no_gradients_are_made(stderr, where):
    w = torch.nn.Parameter(torch.ones(2))
    with where():
        print_tensor(w * 2, "x")
        print_tensor(w, "w")
    assert printed(stderr) == "x: (2.000, 2.000)\nw: (1.000, 1.000)\n"


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, *FLOATS_OF_ONE_BYTE]
)
def test_every_float_is_printed(stderr, dtype):
    print_tensor(torch.tensor([1.0, 2.0]).to(dtype), "x")
    assert printed(stderr) == "x: (1.000, 2.000)\n"


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.tensor([True, False]), "( True, False)"),
        (torch.tensor([1, 22], dtype=torch.uint16), "( 1, 22)"),
        (torch.tensor([1 + 2j]).conj(), "(1.000-2.000j)"),
        (torch.tensor(7), "7"),
        (torch.ones(2, 0), "()"),
        (torch.arange(4).view(2, 2).T, "(\n (0, 2)\n (1, 3)\n)"),
        (torch.tensor([[1.5, float("nan")]]), "(\n (1.500,   nan)\n)"),
    ],
)
def test_every_plain_tensor_is_printed(stderr, x, text):
    print_tensor(x, "x")
    assert printed(stderr) == f"x: {text}\n"


def test_what_has_no_dense_values_is_shown_as_torch_shows_it(stderr):
    x = torch.eye(2).to_sparse()
    print_tensor(x, "x")
    assert printed(stderr) == f"x: {x!r}\n"
    weight = torch.nn.Embedding(3, 2, sparse=True).weight
    print_tensor(weight, "weight")
    printed(stderr)
    torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    assert printed(stderr) == f"weight_gradient: {weight.grad!r}\n"


def test_only_what_is_shown_is_copied(stderr):
    x = torch.arange(10).expand(10**9, 10)  # 80 GB of values
    print_tensor(x, "x", edge_items=1, separator=" ")
    assert printed(stderr) == "x: (\n (0 ... 9)\n ...\n (0 ... 9)\n)\n"


def test_fake_and_meta_tensors_print_nothing(stderr):
    print_tensor(torch.ones(2, device="meta", requires_grad=True), "x")
    with FakeTensorMode():
        y = print_tensor(torch.ones(2, requires_grad=True), "x")
        y.sum().backward()
    assert printed(stderr) == ""


def test_function_transforms_do_not_break(stderr):
    gradient = torch.func.grad(lambda x: print_tensor(x, "x").sum())(torch.ones(2))
    rows = torch.func.vmap(lambda x: print_tensor(x, "x") * 2)(torch.ones(2, 2))
    assert gradient.tolist() == [1.0, 1.0]
    assert rows.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert printed(stderr).startswith("x: GradTrackingTensor")


def test_a_tensor_that_cannot_be_shown_does_not_break_training(stderr):
    class Odd(torch.Tensor):
        def __repr__(self, *, tensor_contents=None):
            raise RuntimeError("first line\nsecond line")

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    print_tensor(torch.Tensor._make_subclass(Odd, torch.ones(2)), "x")
    assert printed(stderr).startswith("x: <not shown: ")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_prints_value_and_gradient_once(stderr, use_reentrant):
    def segment(x):
        return print_tensor(x * 2, "hidden").square()

    x = torch.ones(1, requires_grad=True)
    checkpoint(segment, x, use_reentrant=use_reentrant).sum().backward()
    assert printed(stderr) == "hidden: (2.000)\nhidden_gradient: (4.000)\n"


def inference():
    with torch.inference_mode():
        print_tensor(torch.ones(1), "h")


def autocast():
    with torch.autocast("cpu", torch.bfloat16):
        w = torch.ones(1, 1, requires_grad=True)
        print_tensor((w @ w).view(1), "h").sum().backward()


def anomaly():
    with torch.autograd.detect_anomaly():
        print_tensor(torch.ones(1, requires_grad=True) * 1, "h").sum().backward()


def offloaded():
    with torch.autograd.graph.save_on_cpu():
        print_tensor(torch.ones(1, requires_grad=True) * 1, "h").exp().log().sum().backward()


def forward_ad():
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.ones(1), torch.ones(1))
        print_tensor(x, "h")


def on_another_device():
    with torch.device("meta"):
        print_tensor(torch.ones(1, device="cpu"), "h")


def counted():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        print_tensor(torch.ones(1, requires_grad=True) * 1, "h").sum().backward()


def twice():
    h = print_tensor(torch.ones(1, requires_grad=True) * 1, "h").sum()
    h.backward(retain_graph=True)
    h.backward()


def by_inputs():
    x = torch.ones(1, requires_grad=True)
    torch.autograd.grad(print_tensor(x * 1, "h").sum(), x)


def in_a_thread():
    h = print_tensor(torch.ones(1, requires_grad=True) * 1, "h").sum()
    thread = threading.Thread(target=h.backward)
    thread.start()
    thread.join()


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("session", [False, True], ids=["alone", "in a session"])
@pytest.mark.parametrize(
    ("situation", "gradients"),
    [
        (inference, 0),
        (autocast, 1),
        (anomaly, 1),
        (offloaded, 1),
        (forward_ad, 0),
        (on_another_device, 0),
        (counted, 1),
        (twice, 2),
        (by_inputs, 1),
        (in_a_thread, 1),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_it_prints_in_every_situation_in_which_an_anchor_records(
    stderr, situation, gradients, session
):
    with recording() if session else contextlib.nullcontext():
        situation()
    assert printed(stderr) == "h: (1.000)\n" + "h_gradient: (1.000)\n" * gradients


def test_the_modes_of_a_user_do_not_see_it(stderr):
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(100, 100, dtype=torch.bfloat16).T.conj()
    with Watching():
        print_tensor(x, "x")
    assert seen == []
    assert printed(stderr).startswith("x: (\n")


@pytest.mark.parametrize("stream", [None, "closed", "failing"])
def test_a_stderr_that_fails_does_not_break_training(monkeypatch, stream):
    class Failing(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    elif stream == "failing":
        stream = Failing()
    monkeypatch.setattr(sys, "stderr", stream)
    x = torch.ones((), requires_grad=True)
    print_tensor(x * 2, "x").backward()
    assert x.grad == 2


@pytest.mark.parametrize("x", [1.0, None, [torch.ones(2)], "x"])
def test_what_is_not_a_tensor_is_refused(stderr, x):
    with pytest.raises(NotATensorError, match=f"not {type(x).__name__}") as caught:
        print_tensor(x, "x")
    assert isinstance(caught.value, TypeError)


def test_a_bad_option_is_refused_before_anything_is_printed(stderr):
    x = torch.ones(2, requires_grad=True) * 1
    with pytest.raises(
        ValueError, match="float_format is one of 'auto', 'fixed', 'scientific', 'none'"
    ):
        print_tensor(x, "x", float_format="exponent")
    with pytest.raises(OptionError, match="digits is an int of 0 or more"):
        print_tensor(x, "x", digits=-1)
    x.sum().backward()
    assert printed(stderr) == ""


# A graph break at a tensor with a graph makes dynamo read `.grad` of what is no leaf.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_compiled_code_prints_too(stderr):
    w = torch.nn.Parameter(torch.ones(()))

    @torch.compile(backend="aot_eager")
    def forward(x):
        hidden = x * w
        print_tensor(hidden, "hidden")
        print_tensor(w, "w")
        return hidden.sum()

    for _ in range(2):
        forward(torch.ones(2)).backward()
        assert printed(stderr) == (
            "hidden: (1.000, 1.000)\nw: 1.000\nhidden_gradient: (1.000, 1.000)\nw_gradient: 2.000\n"
        )
    with pytest.raises(OptionError):
        torch.compile(lambda x: print_tensor(x, digits=-1), backend="eager")(torch.ones(1))
