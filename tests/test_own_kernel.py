"""A user's own kernel on the device library: examples/own_kernel compiles, and computes."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from apart import run_apart
from backends import DEVICE, ULP, assert_close, needs_cuda

import diglot
import diglot.interpreter
from diglot.reference.gelu import gelu_oracle

EXAMPLE = Path(__file__).parent.parent / "examples/own_kernel"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# On a machine with a GPU PyTorch compiles it there, by nvcc; without one diglot.interpreter does.
needs_compiler = pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.slow
# Its binding is pybind11's, unlike diglot's own.
has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
needs_headers = pytest.mark.skipif(not has_headers, reason="there are no C headers of Python")


@pytest.fixture(scope="module")
def run_module():
    """The example's run.py, with its folder on the path, as Python itself would have it."""
    sys.path.insert(0, str(EXAMPLE))
    spec = importlib.util.spec_from_file_location("own_kernel_run", EXAMPLE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(EXAMPLE))


def check(function, dtype: torch.dtype) -> None:
    """Compares with float64 on a size that is no multiple of anything, and misaligned."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 10_007, generator=generator) * 2).to(DEVICE, dtype)
    oracle = gelu_oracle(x, "tanh") * y.double()
    # The product in float32 adds a rounding of its own to gelu's error.
    ulp = ULP[dtype] + (0.5 if dtype == torch.float32 else 0)
    assert_close(function(x, y), oracle, ulp, x)
    assert_close(function(x[1:], y[1:]), oracle[1:], ulp, x[1:])
    assert function(x[:0], y[:0]).shape == (0,)


@pytest.mark.slow
@needs_headers
def test_cuda_source_compiles(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    from torch.utils import cpp_extension

    # A CPU build of PyTorch ships every header but this generated one.
    generated = tmp_path / "c10/cuda/impl/cuda_cmake_macros.h"
    generated.parent.mkdir(parents=True)
    generated.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    folders = [diglot.get_include(), *cpp_extension.include_paths()]
    folders += [sysconfig.get_path("include"), str(tmp_path)]
    command = [
        nvcc,
        "-O3",
        "-fmad=false",
        "-std=c++20",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-Xptxas=-v",
        "-DTORCH_EXTENSION_NAME=geglu",
        *cpp_extension.COMMON_NVCC_FLAGS,
        *(f"-I{folder}" for folder in folders),
    ]
    for source in ("binding.cpp", "geglu.cu"):
        made = tmp_path / f"{source}.o"
        arguments = ["-c", str(EXAMPLE / source), "-o", str(made)]
        answer = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr[-4000:]
        assert made.stat().st_size > 0
    spills = re.findall(r"(\d+) bytes spill stores", answer.stderr)
    assert len(spills) == len(DTYPES), answer.stderr[-4000:]
    assert set(spills) == {"0"}


AHEAD_OF_TIME = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from geglu_triton import geglu_kernel
names = geglu_kernel.arg_names
for element, precision in (("fp32", "float"), ("fp16", "half"), ("bf16", "half")):
    pointer = "*" + element
    types = [pointer, pointer, pointer, "i64", "constexpr", "constexpr"]
    source = ASTSource(
        geglu_kernel, dict(zip(names, types)), {"PRECISION": precision, "BLOCK": 4096}
    )
    for architecture in (80, 90):
        made = triton.compile(
            source,
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": 8, "enable_fp_fusion": False},
        )
        print(element, made.metadata.target.arch, "call.uni" in made.asm["ptx"])
"""


def test_triton_kernel_compiles():
    answer = run_apart(AHEAD_OF_TIME, environment={"PYTHONPATH": str(EXAMPLE)})
    assert answer.returncode == 0, answer.stderr[-4000:]
    expected = [f"{e} {a} False" for e in ("fp32", "fp16", "bf16") for a in (80, 90)]
    assert answer.stdout.splitlines() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_triton_kernel(run_module, dtype):
    check(run_module.geglu_triton, dtype)


def test_triton_errors(run_module):
    x = torch.ones(4, device=DEVICE)
    with pytest.raises(TypeError, match="must be float32"):
        run_module.geglu_triton(x.int(), x.int())
    with pytest.raises(ValueError, match="one shape"):
        run_module.geglu_triton(x, x[1:])


@needs_compiler
@needs_cuda
@needs_headers
@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_kernel(run_module, dtype):
    check(run_module.geglu_cuda, dtype)
    assert run_module.load_cuda().__file__


@needs_compiler
@needs_cuda
@needs_headers
def test_cuda_errors(run_module):
    x = torch.ones(4, device=DEVICE)
    with pytest.raises(TypeError, match="must be float32"):
        run_module.geglu_cuda(x.int(), x.int())
    with pytest.raises(ValueError, match="one shape"):
        run_module.geglu_cuda(x, x[1:])
    elsewhere = "meta" if DEVICE == "cpu" else "cpu"
    with pytest.raises(ValueError, match=f"one {DEVICE} device"):
        run_module.geglu_cuda(x.to(elsewhere), x.to(elsewhere))


@needs_compiler
@needs_cuda
@needs_headers
def test_error_measure(run_module):
    """run.py reports what PyTorch's own kernels lose, so that its zero is not a blind one."""
    x, y = torch.randn(2, 4096, device=DEVICE)
    assert run_module.error_in_ulp(run_module.geglu_torch(x, y), x, y) > 0
    assert run_module.error_in_ulp(run_module.geglu_cuda(x, y), x, y) <= 2.5


@pytest.mark.slow
@needs_cuda
@needs_headers
@pytest.mark.skipif(DEVICE == "cuda", reason="with a GPU its kernels run on that")
def test_the_interpreter_watches_a_users_kernel(tmp_path):
    """It is told a wrong size, and its access beyond the end is found."""
    for name in ("geglu.h", "geglu.cu", "binding.cpp"):
        text = (EXAMPLE / name).read_text()
        (tmp_path / name).write_text(text.replace("geglu_forward(type, x.numel(),", BEYOND))
    sources = [tmp_path / "geglu.cu", tmp_path / "binding.cpp"]
    module = diglot.interpreter.load("geglu_beyond", sources, build_directory=tmp_path / "build")
    x = torch.ones(1000)
    with pytest.raises(RuntimeError, match=r"Geglu<float>.*out of bounds.*\n?.*\.cuh:\d+"):
        module.geglu(x, x)


BEYOND = "geglu_forward(type, x.numel() + 1,"


@pytest.mark.parametrize(
    ("sources", "error"),
    [(["kernel.py"], ValueError), (["absent.cu"], FileNotFoundError)],
)
def test_sources_that_are_none(sources, error):
    with pytest.raises(error, match=sources[0]):
        diglot.interpreter.load("nothing", sources)


@needs_cuda
def test_the_compilers_messages_are_told(tmp_path):
    (tmp_path / "wrong.cu").write_text("int kernel( {")
    with pytest.raises(RuntimeError, match=r"wrong\.cu:1"):
        diglot.interpreter.load("wrong", [tmp_path / "wrong.cu"], build_directory=tmp_path)
