"""Perturbed reruns: a training repeated from parameters that differ by a rounding error.

ANCHOR_PERTURB=SEED[:EPS] in the environment makes every session of the process a noise run:

    its name            is RUN-noiseSEED, where RUN is the name that the run would have otherwise;
                        it replaces an earlier run of that name
    its parameters      are multiplied once by 1 ± EPS, when `watch` first sees the model; each
                        element's sign is drawn from SEED and the parameter's name

The drift of such runs from RUN shows how far rounding errors alone carry it (`anchorlib.compare`).
EPS is a number, or the name of a dtype, which stands for that dtype's spacing above 1. Where EPS is
missing or smaller than the spacing of the parameter's own dtype, that spacing is used, so that
elements change. Integers, zeros, half-precision subnormals and buffers are not changed.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from anchorlib.capture.tensors import plain_inside
from anchorlib.dtypes import DTYPES
from anchorlib.errors import OptionError
from anchorlib.names import noise_name, quoted

__all__ = ["VARIABLE", "Perturbation", "perturbation"]

VARIABLE = "ANCHOR_PERTURB"

_log = logging.getLogger("anchorlib")
_begun: set[tuple[str, str]] = set()  # store and name of this process's noise runs


@dataclass(slots=True)
class Perturbation:
    """How one session changes the parameters that it watches.

    seed: the seed of the random signs. eps: the relative change; where it is smaller than the
        spacing of a parameter's dtype (as 0 is), that spacing is used. text: the value of the
        environment variable.
    """

    seed: int
    eps: float
    text: str
    _done: list[torch.Tensor] = field(default_factory=list)

    def takes(self, run: str, store: str, *, resume: bool) -> tuple[str, bool]:
        """Return the name of the noise run of `run`, and whether to resume the noise run.

        The noise run is resumed if the program resumes `run`, and this process has begun the noise
        run before, as a script that records in two sessions does. From this call on, the process
        counts as having begun the noise run.
        store: where both runs are stored. resume: whether the program resumes `run`.
        """
        name = noise_name(run, self.seed)
        goes_on = resume and (store, name) in _begun
        _begun.add((store, name))
        return name, goes_on

    def apply(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Multiply by 1 ± eps, in place, each parameter that was not multiplied before.

        Ranks that hold copies of a parameter draw equal signs, from seed, name and shape.
        parameters: by name.
        """
        for name, parameter in parameters.items():
            if not any(parameter is done for done in self._done):
                self._done.append(
                    parameter
                )  # kept alive: an id may be reused once its object is freed
                _multiply(plain_inside(parameter), self.seed, self.eps, name)

    def close(self) -> None:
        """Warn if no model was watched, since nothing was perturbed then."""
        if not self._done:
            _log.warning(
                "anchorlib: %s=%s is set, but no model was watched: nothing was perturbed",
                VARIABLE,
                self.text,
            )
        self._done.clear()


def perturbation() -> Perturbation | None:
    """Return the perturbation that ANCHOR_PERTURB asks for; None where it is not set.

    None is also returned where ANCHOR_DISABLED is set. Raises OptionError for a text that is not
    SEED[:EPS].
    """
    text = os.environ.get(VARIABLE, "")
    if not text or os.environ.get("ANCHOR_DISABLED", "0") not in ("", "0"):
        return None
    seed, _, size = text.partition(":")
    if not re.fullmatch(r"[0-9]{1,18}", seed):
        raise OptionError(
            f"{VARIABLE}={quoted(text)} in the environment is not SEED[:EPS], for example 1"
        )
    return Perturbation(int(seed), _size(size, text), text)


def _size(size: str, text: str) -> float:
    if not size:
        return 0.0
    known = DTYPES.get(size)
    try:
        eps = float(size) if known is None else known.eps
    except ValueError:
        eps = None
    if eps is None or not 0 <= eps < 1:
        raise OptionError(
            f"{VARIABLE}={text!r} in the environment: EPS is a number under 1, or the name of a "
            "floating-point type, for example bfloat16"
        )
    return eps


@torch.no_grad()
def _multiply(x: torch.Tensor, seed: int, least: float, name: str) -> None:
    kind = DTYPES.get(str(x.dtype).removeprefix("torch."))
    if kind is None or kind.eps is None or x.is_meta or x.layout is not torch.strided:
        return
    # A generator on the CPU uses only 32 bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    signs = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int8)
    wide = torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32
    factor = (signs * 2 - 1).to(x.device, wide) * max(least, kind.eps) + 1
    # `.data` does not count up the version: a forward that ran before this may need its backward.
    x.data.copy_(x.data.to(torch.promote_types(x.dtype, wide)) * factor)
