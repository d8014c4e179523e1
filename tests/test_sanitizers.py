"""The interpreter built with AddressSanitizer, as for make test-sanitize: planted bugs are seen."""

from __future__ import annotations

import os
import subprocess
import sys

import planted.library
import pytest
from backends import NEEDS_CUDA

from diglot.backends.registry import INTERPRET

pytestmark = [
    *NEEDS_CUDA,
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set"),
]


@pytest.fixture(scope="module")
def run():
    """run(kernel): the process that ran it."""
    library = planted.library.build_interpreted(sanitized=True)
    # The first makes use of what the second defines.
    runtimes = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
    }

    def run(kernel):
        command = [sys.executable, planted.library.__file__, str(library), kernel]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    return run


@pytest.mark.parametrize("kernel", ["off_by_one_read", "off_by_one_write"])
def test_a_planted_bug_is_seen(run, kernel):
    done = run(kernel)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert f"planted::{kernel}" in done.stderr
    assert "planted/kernels.cu:" in done.stderr


@pytest.mark.parametrize("kernel", ["sum_in_shared", "sum_by_shuffles", "atomics", "votes"])
def test_right_kernels_run(run, kernel):
    done = run(kernel)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("said: ''; ")


def test_what_the_interpreter_finds_by_itself(run):
    assert "assertion 'threadIdx.x != 3' failed" in run("failed_assertion").stdout
