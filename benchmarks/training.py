"""The cost of watching a whole model for a training step.

An MLP (784-320-100-10, batch 1000, SGD) and a transformer (6 layers, width 512, 8x128 tokens),
each with every module output, its gradient and every parameter gradient recorded at every step.
Beside it, in the same run and taking turns: no observation; the floor (hooks that clone, one writer
thread, one raw file); torch.save of each tensor in each step, as people do by hand; zarr's own
resize and assignment. Wall time includes bringing what was recorded into the store.

    python -m benchmarks training
"""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zarr
from torch import nn

import anchorlib
from anchorlib.summary import SCANS
from benchmarks.figures import Figure, figure
from benchmarks.timing import Samples, interleaved, ratio

FLOOR = "clones, one thread, one raw file"

WALL = (
    "digests, counts, moments and writing are the work of a step's bytes, and run beside it: they "
    "share the memory's bandwidth, the last cache and Python's lock with it"
)
THREAD = (
    "the copies themselves, at the speed of memcpy, and what they push out of the caches; the "
    "floor below, which knows nothing of what it keeps, pays that too"
)
STEPS = 60
Arm = Callable[[], None]
Keep = Callable[[str, torch.Tensor], None]


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    torch.set_num_threads(1)
    SCANS.fault = "numpy is measured first"
    yield from observed("")
    SCANS.fault = None
    if SCANS.load() is None:
        yield from observed(", with the extra fast")
    with tempfile.TemporaryDirectory() as folder:
        yield unselected(Path(folder))
        yield from others(Path(folder))


class Trained:
    """A model with its data and optimizer, always from the same start."""

    def __init__(self, model: Callable[[], nn.Module], inputs: torch.Tensor) -> None:
        torch.manual_seed(0)
        self.model = model()
        self.inputs = inputs
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def steps(self, count: int) -> Arm:
        """An arm of `count` steps."""

        def run() -> None:
            for _ in range(count):
                self.step()

        return run

    def hooked(self, keep: Keep) -> None:
        """Hook a model as people do by hand: outputs, their gradients, parameter gradients."""
        for name, module in self.model.named_modules():
            if name and not list(module.children()):
                module.register_forward_hook(outputs_to(keep, name))
        for name, parameter in self.model.named_parameters():
            parameter.register_post_accumulate_grad_hook(gradient_to(keep, name))


def outputs_to(keep: Keep, name: str) -> Callable[..., None]:
    """A forward hook."""

    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        keep(name, output)
        if output.requires_grad:
            output.register_hook(lambda gradient: keep(name + "@grad", gradient))

    return hook


def gradient_to(keep: Keep, name: str) -> Callable[[torch.Tensor], None]:
    """A hook on a parameter."""

    def hook(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        keep(name + "@grad", parameter.grad)

    return hook


class Floor:
    """Clones, one thread, one file that is appended to: the least that keeping values can cost."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._queue: queue.Queue[torch.Tensor | None] = queue.Queue()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def keep(self, _name: str, x: torch.Tensor) -> None:
        # As they lie in C order: a transposed gradient has no one buffer.
        self._queue.put(x.detach().clone(memory_format=torch.contiguous_format))

    def _write(self) -> None:
        while (x := self._queue.get()) is not None:
            self._file.write(x.numpy().data)
            self._queue.task_done()

    def settle(self) -> None:
        self._queue.join()


class Saved:
    """torch.save of each tensor in each step."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._number = 0

    def keep(self, name: str, x: torch.Tensor) -> None:
        self._number += 1
        torch.save(x.detach(), self._folder / f"{self._number}.{name}.pt")


class Appended:
    """zarr: resize and assign, for each tensor in each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def keep(self, name: str, x: torch.Tensor) -> None:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = zarr.create_array(
                self._folder / name, shape=(0, *x.shape), chunks=(1, *x.shape), dtype="f4"
            )
        rows = array.shape[0]
        array.resize((rows + 1, *x.shape))
        array[rows] = x.detach().numpy()


def mlp() -> nn.Module:
    """784-320-100-10."""
    return nn.Sequential(
        nn.Linear(784, 320), nn.ReLU(), nn.Linear(320, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def transformer() -> nn.Module:
    """6 layers, width 512."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def watched(trained: Trained, stack: ExitStack, folder: Path, **options: Any) -> Any:
    """A session that watches everything; closed with the stack."""
    session = stack.enter_context(anchorlib.start("run", store=folder, **options))
    session.watch(trained.model, optimizer=trained.optimizer)
    return session


def turns(
    folder: Path, make: Callable[[], Trained], steps: int, rounds: int, mode: str
) -> dict[str, Any]:
    """Unobserved and observed steps, taking turns; the observed ones end with a flush."""
    plain, seen = make(), make()
    with ExitStack() as stack:
        session = watched(seen, stack, folder, mode=mode)

        def observed() -> None:
            seen.steps(steps)()
            session.flush()

        return interleaved({"plain": plain.steps(steps), mode: observed}, rounds=rounds, warm=2)


def some_mlp() -> Trained:
    """The MLP and a batch of 1,000."""
    return Trained(mlp, torch.randn(1000, 784))


def some_transformer() -> Trained:
    """The transformer and a batch: about 470 MB of records a step."""
    return Trained(transformer, torch.randn(8, 128, 512))


def observed(beside: str) -> Iterator[Figure]:
    """Both models; `beside` says how they are summarised."""
    for of_model in (of_mlp, of_transformer):
        with tempfile.TemporaryDirectory() as folder:
            yield from of_model(Path(folder), beside)


def unselected(folder: Path) -> Figure:
    """The MLP in steps that its mode leaves out."""
    arm = "every_n:1000000:unit=step"
    samples = turns(folder / "every", some_mlp, STEPS, 9, arm)
    found = ratio(samples, arm, "plain", clock="thread")
    what = "MLP, step that EveryN does not select: thread CPU"
    return figure(what, found, at_most=1.01, why="the clock still counts the calls of each module")


def of_mlp(folder: Path, beside: str) -> Iterator[Figure]:
    """Everything recorded, and summaries alone."""
    for mode, wall, thread in (("all", 1.10, 1.08), ("summary", 1.10, None)):
        samples = turns(folder / mode, some_mlp, STEPS, 9, mode)
        what = f"MLP, {mode}{beside}"
        yield figure(f"{what}: wall", ratio(samples, mode, "plain"), at_most=wall, why=WALL)
        found = ratio(samples, mode, "plain", clock="thread")
        yield figure(f"{what}: CPU of the training thread", found, at_most=thread, why=THREAD)
        found = ratio(samples, mode, "plain", clock="process")
        yield figure(f"{what}: CPU of the process", found)


def of_transformer(folder: Path, beside: str) -> Iterator[Figure]:
    """The transformer."""
    for mode, wall, thread in (("all", None, 1.06), ("summary", 1.10, None)):
        samples = turns(folder / mode, some_transformer, 2, 5, mode)
        what = f"transformer, {mode}{beside}"
        yield figure(f"{what}: wall", ratio(samples, mode, "plain"), at_most=wall, why=WALL)
        found = ratio(samples, mode, "plain", clock="thread")
        yield figure(f"{what}: CPU of the training thread", found, at_most=thread, why=THREAD)


def others(folder: Path) -> Iterator[Figure]:
    """The same records kept in other ways, and the least that keeping them costs."""
    saved, appended = Saved(folder / "saved"), Appended(folder / "zarr")
    models = {name: some_mlp() for name in ("plain", "saved", "zarr")}
    models["saved"].hooked(saved.keep)
    models["zarr"].hooked(appended.keep)
    arms = {name: models[name].steps(STEPS) for name in models}
    arms["floor"] = floored(folder / "mlp", some_mlp, STEPS)
    words = {
        "floor": FLOOR,
        "saved": "torch.save per tensor",
        "zarr": "zarr resize and assignment",
    }
    yield from against_plain(interleaved(arms, rounds=3), "MLP", words)
    arms = {"plain": some_transformer().steps(2)}
    arms["floor"] = floored(folder / "transformer", some_transformer, 2)
    yield from against_plain(interleaved(arms, rounds=4), "transformer", {"floor": FLOOR})


def against_plain(samples: Samples, model: str, words: Mapping[str, str]) -> Iterator[Figure]:
    """Two figures of each arm, over unobserved steps: wall time, and CPU of the training thread."""
    for name, how in words.items():
        yield figure(f"{model}, {how}: wall", ratio(samples, name, "plain"))
        found = ratio(samples, name, "plain", clock="thread")
        yield figure(f"{model}, {how}: CPU of the training thread", found)


def floored(path: Path, make: Callable[[], Trained], steps: int) -> Arm:
    """Steps whose records go to the floor, until all are in its file."""
    floor, trained = Floor(path), make()
    trained.hooked(floor.keep)

    def run() -> None:
        trained.steps(steps)()
        floor.settle()

    return run
