"""The backends that tests run, in one parametrisation, and how results are judged."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import diglot
from diglot.backends.runs import last_run, run
from diglot.tools import cuda_library, machine_code

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPU = torch.cuda.get_device_name() if DEVICE == "cuda" else ""

# On a machine with a GPU all three run on it. Without one, both languages' kernels are interpreted,
# and the tests of CUDA's are deselected, with those that need a GPU, where its interpreter was not
# built (it needs g++).
HAS_CUDA = DEVICE == "cuda" or importlib.util.find_spec("diglot._interpreter") is not None
NEEDS_CUDA = [] if HAS_CUDA else [pytest.mark.gpu]
CUDA = pytest.param("cuda", marks=NEEDS_CUDA)
# Marks of tests that interpret kernels of their own in CUDA C++.
INTERPRETS_CUDA = [*NEEDS_CUDA, pytest.mark.skipif(DEVICE != "cpu", reason="interprets kernels")]
KERNELS = [CUDA, "triton"]
BACKENDS = [*KERNELS, "torch"]


def sampled(step: int) -> pytest.MarkDecorator:
    """The architectures of Triton's kernels, and a step: `make test` compiles one kernel in `step`,
    since a look into one takes most of a second. A step that has no factor in common with the
    numbers of types, directions and the like meets every one of these.
    """
    few = pytest.param("sm_90", step, marks=pytest.mark.compiled)
    return pytest.mark.parametrize(("architecture", "step"), [few, ("sm_90", 1), ("sm_80", 1)])


# Ops whose kernels the interpreters do not run, and why. All others' tests run in both of them.
NOT_INTERPRETED: dict[str, str] = {}
OPS = sorted(path.stem for path in (Path(__file__).parent.parent / "csrc/ops").glob("*.cu"))


def needs_cuda(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that runs CUDA's kernels, or compiles some for the interpreter."""
    return test if HAS_CUDA else pytest.mark.gpu(test)


# Marks a test of messages about kernels on the CPU.
needs_interpreters = pytest.mark.skipif(
    DEVICE == "cuda" or len(diglot.available_backends("cpu")) < 3,
    reason="the interpreters are not on",
)


def interpreted_line() -> str:
    """What the end of a run without a GPU says of the two interpreters."""
    languages = "CUDA C++ and Triton" if HAS_CUDA else "Triton (CUDA's interpreter is not built)"
    ops = ", ".join(op for op in OPS if op not in NOT_INTERPRETED)
    exempt = "; ".join(f"{op} ({why})" for op, why in NOT_INTERPRETED.items()) or "none"
    return f"kernels interpreted in {languages}: {ops}; exempt: {exempt}"


def launched(backend: str, name: str, *arguments: Any) -> str:
    """Runs a launcher, with the scratch that it needs; the variant that ran.

    Args:
        arguments: the launcher's, without its scratch.
    """
    run(backend, name.removesuffix("_forward").removesuffix("_backward"), name, *arguments)
    last = last_run()
    assert last is not None and (last.launcher, last.backend) == (name, backend)
    return last.variant


# For tests that take long only where Triton's kernels are interpreted. Also for tests of an op as
# PyTorch sees it, where the language does not matter: test_operator.py and test_compile.py have
# both languages.
slow_interpreted = [pytest.mark.slow] if DEVICE == "cpu" else []
SLOW_TRITON = pytest.param("triton", marks=slow_interpreted)
SLOW_BACKENDS = [CUDA, SLOW_TRITON, "torch"]


def by_turns(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """A backend and a case. Interpreted, `make test` has CUDA C++ and PyTorch by turns.

    For tests of an op as PyTorch sees it: see SLOW_BACKENDS.
    """
    found = []
    for i, case in enumerate(cases):
        turn = ("cuda", "torch")[i % 2]
        for backend in ("cuda", "triton", "torch"):
            marks = [*(NEEDS_CUDA if backend == "cuda" else [])]
            marks += slow_interpreted if backend != turn else []
            found.append(pytest.param(backend, *case, marks=marks))
    return found


def mostly_slow(cases: Iterable[tuple[Any, ...]], *kept: tuple[Any, ...]) -> list[Any]:
    """Cases; `make test` has only the kept ones, with each value of each parameter once."""
    return [pytest.param(*case, marks=[] if case in kept else pytest.mark.slow) for case in cases]


def examples(count: int) -> int:
    """How many of Hypothesis' examples a test draws: fewer where each is interpreted."""
    return count if DEVICE == "cuda" else count // 4


def why_no_code() -> str | None:
    """Why the code of the CUDA extension cannot be read here."""
    try:
        cuda_library.library_path()
        machine_code.find_cuobjdump()
    except machine_code.ResourcesUnavailable as error:
        return str(error)
    return None


needs_extension = pytest.mark.skipif(why_no_code() is not None, reason=str(why_no_code()))

FLOATING = [torch.float32, torch.float16, torch.bfloat16, torch.float64]

# Greatest error against the float64 oracle, in ulp of the result's dtype. Below the least normal
# number, that number's ulp counts. In 16 bits the oracle is rounded, in 32 it is not. In 64 bits
# the oracle is no better than what it judges: of exact values both are within 7 ulp
# (tests/test_gelu_float64.py), and of each other, in these tests, within 11.
ULP = {torch.float32: 2.0, torch.float16: 1.0, torch.bfloat16: 1.0, torch.float64: 24.0}


def sum_error(dtype: torch.dtype) -> float:
    """What sums of many terms may be off by, as a share of them, whatever their order.

    In float64, kernels of both languages are within 2.1e-15 of the oracle in these tests.
    """
    return 5e-15 if dtype == torch.float64 else 2e-5


# How far the two languages' kernels may be apart, in ulp, where it is not 1: bit by bit the same
# where nothing is approximated. A sum of exponentials has the errors of several: interpreted, each
# language's are its own. Sums over everything are in an order of each language's own: both
# are held to the oracle instead.
APART = {
    "add": 0.0,
    "add_layer_norm": None,
    "add_rms_norm": None,
    "dropout": 0.0,
    "gaussian_pdf": 4.0,
    "global_softmax": None,
    "layer_norm": None,
    "log_softmax": None,
    "rms_norm": None,
    "softmax": None,
    "standardize": None,
}


def spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One ulp of `dtype` at each float64 value; that of the least normal number below it."""
    info = torch.finfo(dtype)
    magnitude = values.abs().clamp(min=info.tiny, max=info.max)
    _, exponent = torch.frexp(magnitude)
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent - 1)


def ulp_error(result: torch.Tensor, oracle: torch.Tensor) -> torch.Tensor:
    """Error of each element in ulp; 0 where both are NaN or the same infinity, inf if only one."""
    dtype = result.dtype
    result, oracle = result.detach().cpu().double(), oracle.detach().cpu().double()
    target = oracle.to(dtype).double()
    if dtype in (torch.float32, torch.float64):
        target = torch.where(target.isfinite(), oracle, target)
    tiny = torch.finfo(dtype).tiny
    unit = torch.where(oracle.abs() < tiny, tiny, spacing(oracle, dtype))
    error = (result - target).abs() / unit
    same = (result == target) | (result.isnan() & target.isnan())
    return torch.where(same, 0.0, torch.where(error.isnan(), torch.inf, error))


def assert_close(
    result: torch.Tensor, oracle: torch.Tensor, ulp: float, x: torch.Tensor | None = None
) -> None:
    """Asserts that no element is further than `ulp` from the oracle; names the worst."""
    assert result.shape == oracle.shape
    if result.numel() == 0:
        return
    error = ulp_error(result, oracle).reshape(-1)
    worst = int(error.argmax())
    share = (error > ulp).double().mean().item()
    at = "" if x is None else f", x = {x.reshape(-1)[worst].item()!r}"
    assert error[worst] <= ulp, (
        f"{error[worst].item():.3g} ulp at flat index {worst}{at}: "
        f"{result.reshape(-1)[worst].item()!r} instead of "
        f"{oracle.reshape(-1)[worst].item()!r}; {share:.2%} of the elements fail {ulp} ulp"
    )


def assert_same(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts that two tensors have the same values, NaN equal to NaN, dtype, device and layout."""
    assert (result.dtype, result.shape, result.device) == (
        expected.dtype,
        expected.shape,
        expected.device,
    )
    assert steps(result) == steps(expected)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random values of any dtype: normal, or of the whole range of integers."""
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype)
    if dtype == torch.bool:
        return torch.rand(shape, device=DEVICE) > 0.5
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype, device=DEVICE)


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All 65536 values of a 16-bit floating type."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides that matter: those of dimensions with more than one element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1] if tensor.numel() else []
