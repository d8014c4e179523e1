"""docs/barriers.md: its two kernels, copied from the page, do what it says."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from backends import CUDA, DEVICE
from planted.library import build_interpreted

PAGE = Path(__file__).parent.parent / "docs/barriers.md"
N = 30_001

CALL = """
extern "C" __attribute__((visibility("default"))) void run(uint32_t* word, int64_t n, float* x,
                                                           float* y) {
  launch_smooth_twice(nullptr, word, n, x, y);
}
"""


def blocks_of_code():
    return re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def smoothed(x):
    padded = torch.cat([x[:1], x, x[-1:]])
    return (padded[:-2] + x + padded[2:]) / 3


def check(result, x):
    torch.testing.assert_close(result, smoothed(smoothed(x)))


@pytest.mark.skipif(DEVICE == "cuda", reason="with a GPU nothing is interpreted")
@pytest.mark.parametrize("backend", [CUDA])
def test_cuda(backend, tmp_path):
    (code,) = (text for language, text in blocks_of_code() if language == "cpp")
    (tmp_path / "smooth.cu").write_text(code + CALL)
    library = build_interpreted(tmp_path / "smooth.cu", tmp_path / "smooth.so")
    run = ctypes.CDLL(str(library)).run
    x = torch.randn(N)
    twice, once, word = x.clone(), torch.empty_like(x), torch.zeros(1, dtype=torch.int32)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (word, twice, once)]
    run(pointers[0], ctypes.c_int64(N), *pointers[1:])
    check(twice, x)


def test_triton(tmp_path):
    (code,) = (
        text for language, text in blocks_of_code() if not language and "@triton.jit" in text
    )
    path = tmp_path / "smooth.py"
    path.write_text(code)
    specification = importlib.util.spec_from_file_location("smooth_page", path)
    module = importlib.util.module_from_spec(specification)
    sys.modules["smooth_page"] = module
    specification.loader.exec_module(module)
    x = torch.randn(N, device=DEVICE)
    twice, once = x.clone(), torch.empty_like(x)
    word = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    module.smooth_twice_in_place(word, twice, once, None)
    check(twice, x)
