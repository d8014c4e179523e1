"""diglot: PyTorch ops written twice by hand, in CUDA C++ and in Triton, behind one function.

    y = diglot.gelu(x, backend="cuda")
    z = diglot.gelu(x, backend="triton")

Importing this package never initialises CUDA, and works without a GPU, without the CUDA extension
and without Triton: `diglot.explain("gelu")` says what can run here and why the rest cannot.
"""

from __future__ import annotations

import importlib as _importlib
import os as _os
import typing as _typing
from importlib import metadata as _metadata
from pathlib import Path as _Path

if _os.environ.get("DIGLOT_INTERPRET") == "1":
    # Triton reads its own variable when a kernel is defined.
    _os.environ.setdefault("TRITON_INTERPRET", "1")

from torch.fx import wrap as _wrap

from diglot import l2, nn
from diglot import ops as _ops
from diglot.backends import (
    BackendUnavailable,
    Explanation,
    LastRun,
    available_backends,
    explain,
    last_run,
    record_runs,
    use_backend,
    use_plans,
)
from diglot.instruments import instrument as _instrument
from diglot.ops import (
    GridBarrierCheck,
    add,
    add_layer_norm,
    add_rms_norm,
    addmm,
    baddbmm,
    bmm,
    clip_grad_norm_,
    dropout,
    gaussian_pdf,
    gelu,
    global_softmax,
    grid_barrier_check,
    grouped_mm,
    layer_norm,
    linear,
    log_softmax,
    matmul,
    mlp,
    moe,
    rms_norm,
    scaled_mm,
    softmax,
    standardize,
)
from diglot.pipeline.errors import StreamError, StreamInterrupted
from diglot.pipeline.pinned import pinned_cache
from diglot.pipeline.results import result_cache
from diglot.pipeline.stream import last_stream_report, stream_map, stream_reduce

if _typing.TYPE_CHECKING:
    from diglot import distributed, graphs
    from diglot.models import override, patch
    from diglot.tools.compare import compare
    from diglot.tools.profiling import profile, profile_call
    from diglot.tools.tune import tune

__version__ = _metadata.version("diglot")

__all__ = [
    "BackendUnavailable",
    "Explanation",
    "GridBarrierCheck",
    "LastRun",
    "StreamError",
    "StreamInterrupted",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "addmm",
    "available_backends",
    "baddbmm",
    "bmm",
    "clip_grad_norm_",
    "compare",
    "distributed",
    "dropout",
    "explain",
    "gaussian_pdf",
    "gelu",
    "get_include",
    "global_softmax",
    "graphs",
    "grid_barrier_check",
    "grouped_mm",
    "l2",
    "last_run",
    "last_stream_report",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "mlp",
    "moe",
    "nn",
    "override",
    "patch",
    "pinned_cache",
    "profile",
    "profile_call",
    "record_runs",
    "result_cache",
    "rms_norm",
    "scaled_mm",
    "softmax",
    "standardize",
    "stream_map",
    "stream_reduce",
    "tune",
    "use_backend",
    "use_plans",
]


def get_include() -> str:
    """The folder to give a compiler as -I, so that `#include "diglot/gelu.cuh"` is found."""
    here = _Path(__file__).parent
    for folder in (here / "include", here.parents[1] / "csrc/include"):  # installed, or editable
        if (folder / "diglot").is_dir():
            return str(folder)
    raise RuntimeError("diglot was installed without its headers")


# torch.fx records a call of `diglot.gelu` as one node, because it cannot trace into the op.
for _name in _ops.__all__:
    _wrap(_name)

# Imported at the first use: tools need more than torch, and few programs patch models.
_TOOLS = {
    "compare": "compare",
    "profile": "profiling",
    "profile_call": "profiling",
    "tune": "tune",
}


def __getattr__(name: str) -> _typing.Any:
    if name in ("distributed", "graphs"):  # imported when used, too
        return _importlib.import_module(f"diglot.{name}")
    if name in _TOOLS:
        return getattr(_instrument(_TOOLS[name]), name)
    if name in ("override", "patch"):
        return getattr(_importlib.import_module("diglot.models"), name)
    raise AttributeError(f"module 'diglot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"annotations"})  # which the future import leaves
