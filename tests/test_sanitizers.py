"""The interpreter built with AddressSanitizer, as for make test-sanitize: planted bugs are seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from planted.library import build_planted

from diglot.backends.registry import INTERPRET

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set"),
]

RUN = """
import ctypes, sys
from planted.library import BLOCKS, THREADS, Options
library = ctypes.CDLL(sys.argv[1])
library.run.restype = ctypes.c_char_p
libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
count = BLOCKS * THREADS
values, out = (ctypes.c_void_p(libc.calloc(n, 4)) for n in (count, BLOCKS))
options = Options(BLOCKS, THREADS)
message = library.run(
    sys.argv[2].encode(), ctypes.byref(options), values, ctypes.c_int64(count), out
)
print("said:", message.decode())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(kernel): the process that ran it."""
    library = build_planted(tmp_path_factory.mktemp("sanitized"), sanitized=True)
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
        "PYTHONPATH": str(Path(__file__).parent),
    }

    def run(kernel):
        command = [sys.executable, "-c", RUN, str(library), kernel]
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
    assert (done.returncode, done.stdout) == (0, "said: \n"), done.stderr


def test_what_the_interpreter_finds_by_itself(run):
    assert "assertion 'threadIdx.x != 3' failed" in run("failed_assertion").stdout
