"""A run of the tests says which languages' kernels it ran; one that demands both can fail."""

from __future__ import annotations

import pytest
from backends import needs_cuda
from languages import Languages
from nested import run_tests

from diglot.backends import registry

SOURCE = """
import diglot, pytest, torch

@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu(backend):
    diglot.gelu(torch.ones(3, device=DEVICE), backend=backend)

def test_without_kernels():
    pass

@pytest.mark.xfail(strict=True)
def test_failing():
    diglot.gelu(torch.ones(3, device=DEVICE), backend="triton")
    assert False
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    from backends import DEVICE

    loaded = registry.load_interpreter() if registry.INTERPRET else registry.load_extension()
    for name in ("load_interpreter", "load_extension"):
        monkeypatch.setattr(registry, name, lambda: loaded)

    def run(*backends, ops=("gelu",), demands_all=True):
        source = f"BACKENDS, DEVICE = {backends}, {DEVICE!r}\n{SOURCE}"
        return run_tests(tmp_path, source, Languages(ops, "somewhere", demands_all))

    return run


@needs_cuda
def test_a_run_of_both(run):
    status, output = run("cuda", "triton", "torch")
    assert status == 0 and "error" not in output
    assert "kernels ran (somewhere): CUDA C++ in 1, Triton in 1 tests" in output


@needs_cuda
@pytest.mark.parametrize("demands_all", [False, True])
def test_a_run_of_one(run, demands_all):
    status, output = run("cuda", demands_all=demands_all)
    assert status == demands_all
    assert "CUDA C++ in 1, Triton in 0 tests" in output
    message = "error: --both-languages: no test ran kernels of Triton of gelu"
    assert (message in output) == demands_all


@needs_cuda
def test_a_run_without_one_of_the_ops(run):
    status, output = run("cuda", "triton", ops=("add", "gelu"))
    assert status == 1
    for language in ("CUDA C++", "Triton"):
        assert f"error: --both-languages: no test ran kernels of {language} of add" in output


@needs_cuda
@pytest.mark.parametrize("demands_all", [False, True])
@pytest.mark.parametrize("name", ["extension", "interpreter"])
def test_a_library_that_does_not_load(run, name, demands_all, monkeypatch):
    if not registry.INTERPRET:
        pytest.skip("kernels run on a GPU")
    monkeypatch.setattr(registry, f"load_{name}", lambda: (None, "it was not built"))
    status, output = run("cuda", "triton", demands_all=demands_all)
    assert status == demands_all
    said = "error: --both-languages" if demands_all else "warning"
    assert f"{said}: no CUDA {name}: it was not built" in output


def test_this_suite_counts(request):
    assert isinstance(request.config.pluginmanager.getplugin("diglot-languages"), Languages)
