"""The models and optimizers that a session watches, each under names of its own.

The session keeps none of them alive: a watched model keeps its `ModelWatch`, and an optimizer its
`OptimizerWatch`, by their hooks. A model that the program drops is freed together with its watch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from itertools import takewhile
from weakref import WeakSet, ref

import torch
from torch import nn

from anchorlib.capture.compiled import Watched, forget_compiled_code, take_hooks_inside
from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.eager import Observer
from anchorlib.capture.headers import (
    Histories,
    StartingValues,
    header_prefix,
    hyperparameters,
    module_texts,
    module_tree,
)
from anchorlib.capture.models import ModelWatch, script_without_hooks, show_encoder_layers_no_hooks
from anchorlib.capture.naming import (
    Choice,
    NamedMembers,
    WatchArguments,
    named_members,
    state_keys,
    tensor_kinds,
)
from anchorlib.capture.optimizers import OptimizerWatch, OptimizerWatches, StepHook, unwrap_all
from anchorlib.capture.own_hooks import leave_out_of_copies
from anchorlib.capture.sessions.settings import Settings
from anchorlib.errors import OptionError
from anchorlib.names import escape, quoted
from anchorlib.scope import TRAIN

__all__ = ["Watches"]

_SHOWN = 3
_Names = Mapping[int, tuple[int, str]]


class Watches:
    """The watched models and optimizers of one session.

    compiled: the dict in which compiled code finds a model's `ModelWatch` by its number; watched
        models are added to it.
    """

    def __init__(
        self, settings: Settings, observer: Observer, compiled: MutableMapping[int, Watched]
    ) -> None:
        self.shares_names = False
        self._settings = settings
        self._observer = observer
        self._compiled = compiled
        self._held: list[ref[ModelWatch]] = []
        self._names: dict[str, ref[nn.Module]] = {}  # by recorded name, its model
        self._optimizers = OptimizerWatches()
        self._choices: list[Choice] = []  # also those of models that are freed by now
        self._in_header: WeakSet[torch.optim.Optimizer] = (
            WeakSet()
        )  # whose settings are in the header
        self._trees: dict[str, str] = {}  # module trees of the watched models, by prefix
        self._histories = Histories(observer.recorder.header)
        self._starts = StartingValues(observer.recorder.header)
        self._step_hook = StepHook(observer, self._optimizers.of, self._histories.stepped)
        self._undo: list[Callable[[], None]] = [leave_out_of_copies()]

    def add(
        self,
        model: nn.Module,
        asked: WatchArguments,
        optimizer: object,
        prefix: str,
    ) -> None:
        """Watch `model`, or further tensors of `model` if it is watched already.

        Under ANCHOR_PERTURB the model's parameters are changed at the first call. Code that was
        compiled before is compiled anew at its next call.

        asked: the selectors, modes, phases and steps that `watch` was given. optimizer: an
            optimizer, a list or tuple of them, or None. prefix: put before every name, with a dot.

        Raises UnknownTensorError for a selector that can match nothing, OptionError for a wrong
        argument or a name that another model has; then nothing is watched.
        """
        parts = named_members(model, prefix)
        inner = unwrap_all(optimizer)
        known = tensor_kinds(parts, state_keys(parts, inner))
        choice = Choice(asked, known, parts)
        self._claim(choice.names, parts.root)
        if self._settings.perturbs is not None:
            self._settings.perturbs.apply(parts.parameters)
        script_without_hooks()
        show_encoder_layers_no_hooks()
        watch = self._watch_of(parts)
        undo = take_hooks_inside(model)
        if undo is not None:
            self._undo.append(undo)
        parameters = enumerate(watch.parts.parameters.items())
        names = {id(p): (place, name) for place, (name, p) in parameters}
        for one in reversed(inner):
            self._watch_optimizer(one, watch, names)
        watch.add(choice)
        if self._settings.recording:
            self._choices.append(choice)
        self._observer.guarded(lambda: self._tell_modules(parts))
        forget_compiled_code()
        # The watch keeps its parts as long as the model lives; those made here end with this call.
        self._observer.lineage.know(watch.parts)

    def forget(self, root: nn.Module) -> None:
        """Stop watching `root`, a model's root module; another model may then have its names."""
        self.forget_choices(root)
        for watch in [one for one in self._models if one.parts.root is root]:
            watch.close()
            self._held = [one for one in self._held if one() is not watch]
            self._compiled.pop(watch.number, None)

    def forget_choices(self, root: nn.Module) -> None:
        """Forget which tensors of `root` to record, and its optimizers; `root` stays watched.

        Other models may then have its names. The optimizer that was to end the session's steps is
        forgotten too, unless an optimizer has stepped or a step was ended by hand.
        root: a model's root module.
        """
        for watch in [one for one in self._models if one.parts.root is root]:
            self._choices = [one for one in self._choices if one not in watch.choices]
            watch.forget_choices()
            for optimizer in [one for one in self._optimizers if one.records(watch.plan)]:
                optimizer.close()
                self._optimizers.remove(optimizer)
        self._names = {name: of for name, of in self._names.items() if of() is not root}
        self._observer.clock.unbind()

    @property
    def parts(self) -> list[NamedMembers]:
        """The named parts of each watched model."""
        return [watch.parts for watch in self._models]

    def has_name(self, name: str) -> bool:
        """Return whether a watched model that still lives records a tensor called `name`."""
        return name in self._names and self._names[name]() is not None

    def at_close(self, undo: Callable[[], None]) -> None:
        """Have `undo` called when the session closes."""
        self._undo.append(undo)

    def _claim(self, names: set[str], root: nn.Module) -> None:
        """Reserve `names` for the model `root`; raise OptionError if another model has any of them.

        Ranks that record nothing reserve names too, so that all ranks raise the same error. While
        models may share names (`shares_names`), no error is raised, and `root` gets the names.
        """
        taken = sorted(
            name
            for name in names
            if name in self._names and self._names[name]() not in (None, root)
        )
        if taken and not self.shares_names:
            shown = ", ".join(map(quoted, taken[:_SHOWN])) + (", …" if len(taken) > _SHOWN else "")
            raise OptionError(
                f"another watched model has tensors of these names: {shown}; give one of the two "
                'a prefix, as watch(model, prefix="teacher")'
            )
        self._names.update(dict.fromkeys(names, ref(root)))

    def _watch_of(self, parts: NamedMembers) -> ModelWatch:
        for watch in self._models:
            if (
                watch.parts.root is parts.root
                and watch.parts.modules.keys() == parts.modules.keys()
            ):
                return watch
        watch = ModelWatch(parts, self._observer, self._settings.wants, self._starts)
        if self._settings.recording:
            watch.attach()
            self._held = [one for one in self._held if one() is not None]
            self._held.append(ref(watch))
            self._compiled[watch.number] = watch
        return watch

    def _watch_optimizer(
        self, optimizer: torch.optim.Optimizer, watch: ModelWatch, names: _Names
    ) -> None:
        self._observer.clock.bind(optimizer)
        self._observer.guarded(lambda: self._tell_settings(optimizer))
        if not any(one.records(watch.plan) for one in self._optimizers.of(optimizer)):
            added = OptimizerWatch(
                optimizer, names, self._observer, watch.plan, watch.records_nothing
            )
            self._optimizers.add(added)
            if added.parameters:
                self._observer.forwards.know_trained(watch.parts.root)

    def _tell_modules(self, parts: NamedMembers) -> None:
        """Note in the run's header the settings of a model's modules (see `module_texts`).

        The number of modules, and a digest of their names and classes, are noted too.
        parts: the named parts of the model.
        """
        if self._settings.recording:
            self._trees[parts.prefix] = module_tree(parts.modules)
            entries = {**module_texts(parts.modules), "modules": "; ".join(self._trees.values())}
            for key, value in entries.items():
                self._observer.recorder.header(key, value)

    def _tell_settings(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the optimizer's hyperparameters in the run's header, unless they are there already.

        Later changes of them are noted, too, as the optimizer steps.
        """
        if not self._settings.recording or optimizer in self._in_header:
            return
        for key, value in hyperparameters(optimizer, len(self._in_header)).items():
            self._observer.recorder.header(key, value)
        self._histories.follow(optimizer, header_prefix(len(self._in_header)))
        self._in_header.add(optimizer)

    def name_of(self, optimizer: object) -> str:
        """Return a name for `optimizer`, for messages.

        It is the name of the innermost watched module that holds all watched parameters of the
        optimizer; the name of the optimizer's class where that is the whole model, or none.
        """
        paths = [
            name.split(".")[:-1]
            for one in self._optimizers.of(optimizer)
            for name in one.parameters
        ]
        levels = zip(*paths, strict=False)
        common = takewhile(lambda level: len(set(level)) == 1, levels)
        return escape(".".join(level[0] for level in common)) or type(optimizer).__name__

    def on_pass(self, at: CallCoordinates) -> None:
        """As a pass begins, record parameters and buffers, and note the random state.

        The random state is noted only in the phase "train".
        """
        for watch in self._models:
            self._observer.guarded(partial(watch.on_pass, at))
        settings = self._settings
        if (
            at.phase == TRAIN
            and settings.recording
            and not settings.scope.records_nothing(at.step, TRAIN)
        ):
            self._observer.guarded(lambda: self._histories.began(at.step, at.pass_index))

    @property
    def missing(self) -> list[str]:
        """The selectors that have matched no tensor yet, but may match one that appears later."""
        return [text for one in self._choices for text in one.missing]

    @property
    def _models(self) -> list[ModelWatch]:
        """The watches of models that still live."""
        return [watch for one in self._held if (watch := one()) is not None]

    def close(self) -> None:
        """Remove the session's hooks from all models and optimizers, and undo its other changes."""
        self._observer.guarded(self._histories.close)
        for model in self._models:
            model.close()
        for optimizer in self._optimizers:
            optimizer.close()
        self._step_hook.close()
        for undo in self._undo:
            undo()
