"""The run header: versions, devices and settings that a run depends on besides its code.

The header is a flat mapping that can be written as JSON, and has its secrets masked (see
`masking`).
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorlib.capture.headers.masking import MASK, masked, masked_value
from anchorlib.torch_private import emulates_precision, is_any_autocast

__all__ = ["autocast", "command", "run_header"]


def run_header(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run header, by entry name: versions, devices, settings of torch, and the command.

    It also has the git commit of the script, and the environment variables that place this process
    in a distributed job or that numeric libraries read.
    attributes: the user's own entries, by name; they become `user.NAME`.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": command(sys.orig_argv, inline=sys.argv[:1] == ["-c"]),
        "git.commit": _git_commit(),
        "numpy": np.__version__,
        **_torch_settings(),
        **_TO_COME,
        **_world(),
        **{f"user.{name}": masked_value(name, value) for name, value in attributes.items()},
    }


def _torch_settings() -> dict[str, Any]:
    return {f"torch{key}": _read(ask) for key, ask in _SETTINGS.items()}


def _read(ask: Callable[[], Any]) -> Any:
    # torch raises where older settings are read after `fp32_precision` was set; an older torch
    # lacks some settings.
    try:
        return ask()
    except (AttributeError, RuntimeError):
        return None


def autocast() -> str | None:
    """Return the dtypes of autocast on all devices, joined by "|"; None where autocast is off."""
    if not is_any_autocast():  # the cheap test first: every pass calls this
        return None
    dtypes = [_autocast(device) for device in _DEVICES if torch.amp.is_autocast_available(device)]
    return "|".join(dict.fromkeys(dtype for dtype in dtypes if dtype)) or None


def _autocast(device: str) -> str | None:
    on = torch.is_autocast_enabled(device)
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.") if on else None


def _emulate_precision_casts() -> bool:
    # Inductor is not imported for this, which takes seconds: until the program imports it, its
    # setting is that of the environment.
    setting = emulates_precision()
    if setting is None:
        return os.environ.get("TORCHINDUCTOR_EMULATE_PRECISION_CASTS", "0") == "1"
    return setting


def _device() -> str:
    """Return the name of the GPU, else the kind of accelerator ("xpu", "mps"), else "cpu"."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    return "cpu"


_SETTINGS: dict[str, Callable[[], Any]] = {
    "": lambda: torch.__version__,
    ".cuda": lambda: torch.version.cuda,
    ".device": _device,
    ".cpu_capability": torch.backends.cpu.get_cpu_capability,
    ".default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    ".threads": torch.get_num_threads,
    ".interop_threads": torch.get_num_interop_threads,
    ".deterministic": torch.are_deterministic_algorithms_enabled,
    ".float32_matmul_precision": torch.get_float32_matmul_precision,
    ".cuda.matmul.fp32_precision": lambda: torch.backends.cuda.matmul.fp32_precision,
    ".cuda.matmul.bf16_reduction": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    ".cuda.matmul.fp16_reduction": lambda: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    ".mkldnn.matmul.fp32_precision": lambda: (
        torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]  # untyped
    ),
    ".cudnn": torch.backends.cudnn.version,
    ".cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    ".cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    ".cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    ".cudnn.conv.fp32_precision": lambda: (
        torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]  # untyped
    ),
    ".autocast.cpu": lambda: _autocast("cpu"),
    ".autocast.cuda": lambda: _autocast("cuda"),
    ".initial_seed": torch.initial_seed,
    ".compile.emulate_precision_casts": _emulate_precision_casts,
}

# Entries that are known only during training, which then states them anew.
_TO_COME = {"torch.backend": "eager", "amp.autocast": None, "amp.grad_scaler": False}
_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")

_ENVIRONMENT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"),
    *("CUBLAS_WORKSPACE_CONFIG", "TORCH_COMPILE_DISABLE"),
)


# Beginnings of variables that numeric libraries read, except for variables that locate files.
_OF_LIBRARIES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "DNNL_", "ONEDNN_", "CUBLAS_", "CUDNN_"),
    *("NVIDIA_TF32_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "ATEN_"),
    *("NCCL_ALGO", "NCCL_PROTO", "PYTHONHASHSEED"),
)
_OF_FILES = ("_DIR", "_PATH", "_HOME", "_CACHE", "_FILE", "_ROOT", "_PREFIX", "_BIN", "_LIB")
_LONGEST = 200


def _world() -> dict[str, Any]:
    names = [
        name
        for name in os.environ
        if name in _ENVIRONMENT or (name.startswith(_OF_LIBRARIES) and not name.endswith(_OF_FILES))
    ]
    return {f"env.{name}": str(masked_value(name, os.environ[name]))[:_LONGEST] for name in names}


def command(argv: list[str], *, inline: bool = False) -> list[str]:
    """Return the command line `argv` with secrets masked.

    argv: the words of the command line, from the interpreter on. inline: whether the command is
        `python -c CODE`; then all of CODE is masked.
    """
    shown = masked(argv)
    if inline:
        code = next((i for i, a in enumerate(argv) if re.fullmatch(r"-\w*c", a)), len(argv))
        shown[code + 1 : code + 2] = [MASK]
    return shown


def _git_commit() -> str | None:
    """Return the hash of the git commit in the running script's folder; None where git gives none.

    "+" after the hash says that tracked files differ from the commit.
    """
    script = Path(sys.argv[0] or ".").resolve().parent
    if not script.is_dir():
        return None
    try:
        answer = subprocess.run(  # a fixed command
            ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=40"],
            cwd=script,
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
