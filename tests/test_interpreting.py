"""What is said and refused where kernels are interpreted, or could be."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from backends import DEVICE, KERNELS

import diglot
from diglot.backends import registry
from diglot.tools import info, measure

CPU = torch.device("cpu")


@pytest.mark.parametrize("is_built", [True, False])
def test_an_interpreter_is_offered_where_there_is_one(is_built, monkeypatch):
    monkeypatch.setattr(registry, "INTERPRET", False)
    monkeypatch.setattr(registry, "has_interpreter", lambda: is_built)
    reason = registry.BACKENDS["cuda"].refusal(CPU)
    assert reason.startswith("it takes CUDA tensors, and this one is on the CPU; ")
    assert ("DIGLOT_INTERPRET=1" in reason) == is_built
    assert ("installed without its CUDA interpreter" in reason) != is_built


def test_info_tells_of_the_interpreter(monkeypatch):
    is_built = registry.has_interpreter()
    assert (info.collect().interpreter == "built") == is_built
    monkeypatch.setattr(info, "load_interpreter", lambda: (None, registry.NO_INTERPRETER))
    assert f"CUDA interpreter  {registry.NO_INTERPRETER}" in str(info.collect())


def no_work():
    raise AssertionError("it was called")


@pytest.mark.parametrize("timer", [measure.interleaved, measure.graphed, measure.host])
@pytest.mark.parametrize(
    ("ours", "tritons", "message"),
    [
        (True, True, "(DIGLOT_INTERPRET=1)"),
        (False, True, "(TRITON_INTERPRET)"),
        (False, False, "PyTorch finds no CUDA GPU"),
    ],
)
def test_an_interpreted_run_is_not_timed(timer, ours, tritons, message, monkeypatch):
    monkeypatch.setattr(measure, "INTERPRET", ours)
    monkeypatch.setattr(measure, "triton_interprets", lambda: tritons)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: tritons)
    with pytest.raises(RuntimeError, match=f"not timed: .*{re.escape(message)}"):
        timer({"gelu": no_work})


@pytest.mark.skipif(not registry.INTERPRET, reason="DIGLOT_INTERPRET is not set")
def test_a_comparison_says_why_it_has_no_times():
    compared = diglot.compare("gelu", torch.randn(5), resources=False)
    assert compared.untimed.startswith("kernels are interpreted (DIGLOT_INTERPRET=1)")
    assert compared.ceiling is None and all(row.speed is None for row in compared.rows)
    assert "\nnot timed: kernels are interpreted" in str(compared)
    unasked = diglot.compare("gelu", torch.randn(5), resources=False, timed=False)
    assert unasked.untimed is None and "not timed" not in str(unasked)


def test_benchmarks_refuse_an_interpreter(monkeypatch):
    from commands import fails

    monkeypatch.setattr(measure, "INTERPRET", True)
    assert "nothing is measured: kernels are interpreted (DIGLOT_INTERPRET=1)" in fails(
        "bench", "gelu"
    )


@pytest.mark.parametrize("backend", KERNELS)
def test_threads_interpret_at_once(backend):
    """Triton's interpreter changes its language while a kernel runs, for all threads."""
    x = torch.randn(64, 16, device=DEVICE)
    failed = []

    def compute():
        for _ in range(6):
            try:
                torch.testing.assert_close(diglot.add(x, x, backend=backend), x + x)
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]
