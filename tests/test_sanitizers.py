"""The interpreter built with AddressSanitizer, as for make test-sanitize: planted bugs are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import planted.library
import pytest
import torch
from backends import NEEDS_CUDA
from planted import table

from diglot.backends.registry import INTERPRET

pytestmark = [
    *NEEDS_CUDA,
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(kernel), or run(kernel, right) of the table: the process that ran it."""
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

    def run(kernel, right=None):
        source = planted.library.KERNELS if right is None else right.source
        library = planted.library.build_interpreted(source, sanitized=True)
        command = [sys.executable, planted.library.__file__, str(library), kernel]
        if right is not None:
            values = tmp_path_factory.mktemp("values") / right.name
            values.write_bytes(right.values.numpy().tobytes())
            command += [json.dumps(dict(right.launch)), str(values)]
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


@pytest.mark.parametrize("right", table.RIGHT, ids=lambda right: right.name)
def test_asynchronous_kernels_run(run, right):
    done = run(right.kernel, right)
    assert done.returncode == 0, done.stderr
    said, results = done.stdout.split("; results: ")
    assert said == "said: ''"
    assert right.is_right(torch.tensor([float(number) for number in results.split()]))


@pytest.mark.parametrize("bug", table.BUGS, ids=lambda bug: bug.name)
def test_bugs_of_asynchronous_kernels_end_in_no_crash(run, bug):
    done = run(bug.kernel, bug.right)
    assert done.returncode == 0, done.stderr


def test_what_the_interpreter_finds_by_itself(run):
    assert "assertion 'threadIdx.x != 3' failed" in run("failed_assertion").stdout
