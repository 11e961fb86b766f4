"""The watcher of this process: its session, and the models that its optimizers update.

Until training begins, all models are watched anew whenever an optimizer is constructed: only then
is it known how many models there are, what they are called, and which optimizer wraps which. Models
that appear after training has begun are added to those that are watched. Programs with one
optimizer for each parameter have hundreds of optimizers: after the first few, optimizers of known
models are put on a list, and are added together before training goes on.

    one model            has its own names, as `Session.watch(model)` gives them
    several models       each has its name in the program as a prefix: netG.main.0.weight
    a model in place of  takes over the earlier model's names, and is recorded in the steps
    an earlier one       that follow, as in cross-validation
"""

from __future__ import annotations

import threading
from types import FrameType
from weakref import ref

from torch import nn
from torch.optim.optimizer import Optimizer

from anchorlib.capture import (
    Session,
    active_session,
    after_a_step,
    before_training_goes_on,
    catches_up_before_steps,
    forget_choices,
    has_begun,
    is_watched,
    see_called_parts,
    unwatch,
    unwrapped,
)
from anchorlib.errors import AnchorError, UnknownTensorError
from anchorlib.launch.models import Model, holds, prefixes, unused_name
from anchorlib.launch.request import Request
from anchorlib.launch.roots import roots_of
from anchorlib.launch.session import at_end, end_session, open_session
from anchorlib.launch.stderr_lines import say
from anchorlib.launch.variable_names import callings, constructing, user_frame
from anchorlib.names import escape

__all__ = ["AutoWatcher"]

_SEARCHES = 64  # most searches for models; each looks at all objects of the process
_AT_ONCE = 8  # optimizers of known models are added in batches once there are this many


class AutoWatcher:
    """Opens a session and watches the models of a program that opens no session itself.

    request: what to record: the run's name, selectors of tensors, and a mode.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._untold = request.watch
        self._session: Session | None = None
        self._optimizers: dict[int, ref[Optimizer]] = {}  # by id, in order of construction
        self._waiting: list[ref[Optimizer]] = []
        self._compiles = False  # whether code is compiled, which runs no hook that could catch up
        self._models: list[Model] = []
        self._searches = 0
        self._over = False
        self._lock = threading.RLock()

    @property
    def rests_in_children(self) -> bool:
        """Whether a session was opened, so that this watcher does nothing in a forked child.

        If no session was opened, a forked child forgets this watcher and may record models itself.
        """
        return self._session is not None

    def constructed(self, optimizer: Optimizer, frame: FrameType) -> None:
        """Watch the models of `optimizer`, a new one or one that was given more parameters.

        The first models that are found open the session. Does nothing once this watcher is stopped
        (see `_is_ours`). Raises nothing: faults are written to stderr.

        frame: the stack frame that called the constructor or `add_param_group`. Its variables and
        those of its callers name the models.
        """
        with self._lock:
            if self._over or not self._is_ours():
                return
            try:
                self._take(optimizer, frame)
            except Exception as fault:  # noqa: BLE001  # inside a user's constructor
                self._over = self._session is None
                said = escape(str(fault)) if isinstance(fault, AnchorError) else repr(fault)
                say(f"{type(optimizer).__name__} is not observed: {said}")

    def grown(self, optimizer: Optimizer, frame: FrameType) -> None:
        """Watch the models of parameters that were added to `optimizer`.

        Does nothing while `optimizer` is still being constructed: `constructed` is called
        afterwards.

        frame: the stack frame that called `add_param_group`.
        """
        if self._has(optimizer):
            self.constructed(optimizer, frame)

    def compiles(self) -> None:
        """Add the optimizers on the waiting list now, as `torch.compile` is about to be called.

        The list has optimizers of known models that wait to be added together. Hooks that are
        registered after the call would not be part of the compiled code. From now on, no optimizer
        is put on the list.
        """
        with self._lock:
            self._compiles = True
            self._catch_up()

    def wrapped(self, wrapper: object) -> None:
        """Watch `wrapper`, which `torch.compile` returned, in place of the model inside it.

        The wrapper then compiles the model's hooks, too. Does nothing once training has begun, or
        where the model inside is not watched.
        """
        with self._lock:
            session = self._session
            if not isinstance(wrapper, nn.Module) or session is None or has_begun(session):
                return
            for model in self._models:
                root = model.root()
                if root is not None and unwrapped(root) is unwrapped(wrapper):
                    self._unwatch(session, model)
                    model.root = ref(wrapper)
                    self._watch_anew(session)

    def _is_ours(self) -> bool:
        """Return whether this watcher may go on; if not, stop it for good.

        It may not where the program has opened a session of its own, or where other code has closed
        the watcher's session.
        """
        active = active_session()
        if active is self._session:
            return True
        self._over = True
        if active is not None:
            say(f"the program records run {active.run} itself: anchor run adds nothing to it")
        return False

    def _take(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        for outer in constructing(frame, Optimizer):  # SAM, while it makes its base optimizer
            if outer is not optimizer:
                self._optimizers.pop(id(outer), None)
        if not self._has(optimizer):
            self._optimizers.pop(id(optimizer), None)  # of a freed optimizer with that id
            self._optimizers[id(optimizer)] = ref(optimizer)
        new = self._new_models(optimizer, user_frame(frame, Optimizer))
        if not (new or self._models):
            return
        if self._session is None:
            self._session = open_session(self._request)
            after_a_step(self._session, self.tell_unknown)
            catches_up_before_steps(self._session)
            at_end(self.end)
        if not new and len(self._optimizers) > _AT_ONCE and not self._compiles:
            self._waiting.append(ref(optimizer))
            before_training_goes_on(self._session, self._catch_up)
        elif has_begun(self._session):
            self._join(self._session, new, optimizer)
        else:
            self._models += new
            self._watch_anew(self._session)

    def _has(self, optimizer: object) -> bool:
        known = self._optimizers.get(id(optimizer))
        return known is not None and known() is optimizer

    def _catch_up(self) -> None:
        """Empty the waiting list, and watch its optimizers' models again with these optimizers.

        Before training has begun, all models are watched again, since the order of the optimizers
        counts (`_last_first`). No model is watched again where no optimizer waits, or where the
        program has opened a session of its own.
        """
        waiting = [one for held in self._waiting if (one := held()) is not None]
        session, self._waiting = self._session, []
        if session is None or not waiting or active_session() is not session:
            return
        held = {id(p) for one in waiting for group in one.param_groups for p in group["params"]}
        begun = has_begun(session)
        models = [model for model in self._models if not begun or held & model.own()]
        for model in models:
            root = model.root()
            if root is not None:
                forget_choices(session, root)
        for model in self._last_first(models):
            self._choose(session, model)

    def _new_models(self, optimizer: Optimizer, frame: FrameType | None) -> list[Model]:
        session = self._session
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        unknown = [p for p in parameters if session is None or not is_watched(session, p)]
        if unknown:  # parameters of no watched model, or new ones of a watched model
            known = {id(p) for root in self._roots() for p in root.parameters()}
            unknown = [p for p in unknown if id(p) not in known]
        if not unknown or self._searches > _SEARCHES:
            return []
        self._searches += 1
        if self._searches > _SEARCHES:
            say(f"more than {_SEARCHES} optimizers with models of their own: models of further "
                "optimizers are not recorded")  # fmt: skip
            return []
        roots = roots_of(unknown)
        names = callings(roots, frame)
        return [Model.of(root, own) for root, own in zip(roots, names, strict=True)]

    def _roots(self) -> list[nn.Module]:
        return [root for model in self._models if (root := model.root()) is not None]

    # -- before training begins

    def _watch_anew(self, session: Session) -> None:
        for model in self._models:
            self._unwatch(session, model)
        self._models = [model for model in self._models if model.root() is not None]
        self._optimizers = {key: one for key, one in self._optimizers.items() if one() is not None}
        self._waiting = []
        for model, prefix in zip(self._models, prefixes(self._models), strict=True):
            model.prefix = prefix
        for model in self._last_first(self._models):
            self._watch(session, model)

    def _last_first(self, models: list[Model]) -> list[Model]:
        """Return `models` in the order to watch them: the model of the newest optimizer first.

        The optimizer of the first watched model ends the session's steps, and it should be the last
        one to step in a step. Optimizers mostly step in the order of their construction.
        """
        own = [model.own() for model in models]
        optimizers = [one() for one in self._optimizers.values()]
        last = [
            max((place for place, one in enumerate(optimizers) if holds(one, mine)), default=-1)
            for mine in own
        ]
        order = sorted(range(len(models)), key=lambda place: last[place], reverse=True)
        return [models[place] for place in order]

    def _watch(self, session: Session, model: Model) -> None:
        root = model.root()
        if root is not None:
            self._choose(session, model)
            model.undo = see_called_parts(session, root)  # after watch's hooks, which run first

    def _choose(self, session: Session, model: Model) -> None:
        root = model.root()
        if root is None:
            return
        own = model.own()
        optimizers = [one for held in self._optimizers.values() if holds(one := held(), own)]
        model.unknown.clear()
        self._watch_tensors(session, model, root, optimizers)

    def _watch_tensors(
        self, session: Session, model: Model, root: nn.Module, optimizers: list[Optimizer | None]
    ) -> None:
        some, prefix = self._request.watch, model.prefix
        session.watch(root, tensors=[] if some else None, optimizer=optimizers, prefix=prefix)
        for text in some:
            try:
                session.watch(root, tensors=[text], optimizer=optimizers, prefix=prefix)
            except UnknownTensorError as fault:  # it may be a tensor of another model
                model.unknown[text] = str(
                    fault
                )  # not the fault, whose traceback keeps the model alive

    # -- while training is on

    def _join(self, session: Session, new: list[Model], optimizer: Optimizer) -> None:
        for model in new:
            before = self._predecessor(model)
            if before is not None:
                model.prefix = before.prefix
                self._models.remove(before)
                self._unwatch(session, before)
            else:
                taken = {one.prefix for one in self._models}
                model.prefix = unused_name(model.callings, model, taken)
            self._models.append(model)
        for model in self._models:
            if holds(optimizer, model.own()):
                self._unwatch(session, model)
                self._watch(session, model)

    def _unwatch(self, session: Session, model: Model) -> None:
        model.undo()
        root = model.root()
        if root is not None:
            unwatch(session, root)

    def _predecessor(self, model: Model) -> Model | None:
        """Return the watched model that `model` replaces; None where there is no such model.

        A model replaces a watched model of its class if the program calls both by the same name.
        """
        for one in self._models:
            if set(one.callings) & set(model.callings) and one.cls is model.cls:
                return one
        return None

    # -- the end

    def end(self) -> None:
        """Close the watcher's session if it is still open, and write to stderr where the run is."""
        if self._session is not None and not self._over and active_session() is self._session:
            self.tell_unknown()
            end_session(self._session, self._request.store)

    def tell_unknown(self) -> None:
        """Write to stderr which selectors of the request match no tensor of any model.

        Does nothing at a second call. The caller has to wait until training has begun, as models
        may be constructed until then.
        """
        texts, self._untold = self._untold, ()
        for text in texts:
            faults = [one.unknown[text] for one in self._models if text in one.unknown]
            if faults and len(faults) == len(self._models):
                say(escape(faults[0]))
