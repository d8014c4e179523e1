"""Messages and refusals where kernels are interpreted, or could be."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time

import pytest
import torch
from backends import DEVICE

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
    assert (dict(info.collect().rows)["CUDA interpreter"] == "built") == is_built
    monkeypatch.setattr(info, "load_interpreter", lambda: (None, registry.NO_INTERPRETER))
    assert dict(info.collect().rows)["CUDA interpreter"] == registry.NO_INTERPRETER


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


def test_triton_interprets_one_kernel_at_a_time():
    """Its interpreter changes its language while a kernel runs, for all threads."""
    launch = pytest.importorskip("diglot.triton_ops.launch.launch")
    plan = pytest.importorskip("diglot.triton_ops.launch.plan")
    running, most = [], []

    class Kernel:
        def __getitem__(self, grid):
            return self.run

        def run(self, *_):
            running.append(self)
            time.sleep(0.02)
            most.append(len(running))
            running.remove(self)

    made = plan.Plan("", (plan.Launch(Kernel(), (1,), (), (), (), 4),), None)

    def compute():
        launch._interpret(made, (), None, ())

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


@pytest.mark.filterwarnings("ignore")  # Python's, that a process of several threads forks
@pytest.mark.skipif(DEVICE == "cuda", reason="with a GPU nothing is interpreted")
def test_a_child_interprets_whatever_its_parent_did():
    launch = pytest.importorskip("diglot.triton_ops.launch.launch")
    x, is_held, is_over = torch.randn(8, 8), threading.Event(), threading.Event()
    diglot.add(x, x, backend="triton")

    def hold():
        with launch._interpreter:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather than wait for ever
        with contextlib.suppress(BaseException):
            os._exit(0 if torch.equal(diglot.add(x, x, backend="triton"), x + x) else 3)
        os._exit(4)
    _, status = os.waitpid(child, 0)
    is_over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
