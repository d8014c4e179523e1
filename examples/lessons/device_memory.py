"""Memory of the GPU by hand: checked cudaMalloc, cudaMemset, cudaMemcpy and cudaFree.

    python examples/lessons/device_memory.py

device_memory.cu is a whole program of 60 lines. It prints every call with its status, and makes two
errors on purpose. Without a GPU the first call fails, and the check says where and why. It needs
nvcc. PyTorch does the same for its tensors, and keeps freed memory for the next tensor.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from lesson import ON_GPU, Table, compile_cuda, show


def steps() -> tuple[list[dict[str, str]], int, str]:
    """Each call with its status; the program's exit status; what it complained about."""
    program = compile_cuda("device_memory", is_program=True)
    if program is None:
        return [{"call": "nvcc", "status": "not found: nothing is compiled"}], 1, ""
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return [{"call": c, "status": s} for c, s in lines], done.returncode, done.stderr.strip()


def main() -> Iterator[Table]:
    """The program's steps."""
    rows, status, complaint = steps()
    yield Table("device_memory.cu", rows)
    yield Table("How it ended", [{"exit status": status, "error": complaint or None}])
    assert status == 0 or not ON_GPU, complaint


if __name__ == "__main__":
    show(main)
