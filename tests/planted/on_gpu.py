"""What a GPU and compute-sanitizer say of the planted bugs: the table of docs/interpreter.md.

    python tests/planted/on_gpu.py

Needs a GPU, nvcc and compute-sanitizer.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import library

BUGS = [
    "missing_barrier",
    "missing_barrier_in_loop",
    "race_in_shared",
    "race_in_warp",
    "divergent_barrier",
    "missing_arrival",
    "off_by_one_read",
    "off_by_one_write",
    "misaligned_vector",
    "beyond_shared",
    "absent_lane",
    "absent_lanes_of_mask",
    "division_by_zero",
    "stack_overflow",
    "dropped_warp",
    "spin_on_volatile",
]
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
SECONDS = 40  # after which a kernel is taken to hang


def run(built: Path, kernel: str, tool: str | None) -> str:
    command = [sys.executable, library.__file__, str(built), kernel]
    if tool is not None:
        sanitizer = ["/usr/local/cuda/bin/compute-sanitizer", "--tool", tool]
        command = [*sanitizer, "--error-exitcode", "9", *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "hangs"
    if tool is None:
        said = re.search(r"said: (.*)", done.stdout)
        return said.group(1) if said else f"exit {done.returncode}"
    found = re.search(r"(ERROR SUMMARY|RACECHECK SUMMARY): (.*)", done.stdout)
    first = re.search(r"========= (?:Error: )?((?!COMPUTE|ERROR|RACE).*)", done.stdout)
    return f"{found.group(2) if found else done.returncode}; {first.group(1) if first else ''}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        built = library.build_for_gpu(Path(folder))
        rows = {
            kernel: [pool.submit(run, built, kernel, tool) for tool in (None, *TOOLS)]
            for kernel in ["sum_in_shared", *BUGS]
        }
        for kernel, cells in rows.items():
            print("|", kernel, "|", " | ".join(cell.result() for cell in cells), "|", flush=True)


if __name__ == "__main__":
    main()
