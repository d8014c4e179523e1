"""A process that forks while another of its threads interprets a kernel."""

from __future__ import annotations

import os
import signal
import threading

from backends import INTERPRETS_CUDA
from planted.library import ROOT, build_interpreted, runner

FORKS = 40

pytestmark = INTERPRETS_CUDA


def test_the_child_runs_kernels():
    run = runner(build_interpreted(ROOT / "tests/planted/clusters.cu"))

    def work(forks: threading.Event) -> None:
        while not forks.is_set():
            run("add_atomically", blocks=64)

    are_over = threading.Event()
    worker = threading.Thread(target=work, args=(are_over,))
    worker.start()
    try:
        for _ in range(FORKS):
            child = os.fork()
            if child == 0:
                signal.alarm(10)  # ends a child that hangs
                message, _ = run("add_atomically")
                os._exit(message != "")
            _, status = os.waitpid(child, 0)
            assert status == 0
    finally:
        are_over.set()
        worker.join()
