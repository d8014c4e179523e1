"""What a GPU and compute-sanitizer say of the planted bugs: for the tables of docs/interpreter.md.

    python tests/planted/on_gpu.py RESULTS

writes RESULTS, such as bench/comparisons/h200-planted-bugs.json, and prints all answers. Each
kernel runs in a process of its own. The run fails if a right kernel is wrong. Needs a GPU, nvcc
and compute-sanitizer.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import library
import table
import torch

from diglot.bench.evidence import commit, versions

# Bugs of kernels.cu, which need no compute capability 9.0, beside a right kernel.
ELSEWHERE = [
    "sum_in_shared",
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
PROCESSES = 12  # at a time
SECONDS, TOOL_SECONDS = 20, 60  # a kernel that takes longer hangs.
# With -DDIGLOT_CHECKED, a wait contains a call. ptxas then makes products wait for each other. That
# hides a missing wait for them.
NOT_CHECKED = {"product"}
GAVE_UP = "has waited 2 s"


@dataclass(frozen=True)
class Answer:
    """What one process printed."""

    text: str
    status: int | None  # None: it was stopped

    @property
    def hangs(self) -> bool:
        return self.status is None or GAVE_UP in self.text

    @property
    def said(self) -> str:
        found = re.search(r"said: (['\"])(.*)\1; results:", self.text)
        return found[2] if found else f"exit {self.status}"

    @property
    def results(self) -> torch.Tensor:
        found = re.search(r"; results: (.*)", self.text)
        return torch.tensor([float(number) for number in found[1].split()] if found else [])

    def verdict(self, is_right: Callable[[torch.Tensor], bool]) -> str:
        """Of a plain run."""
        if self.hangs:
            return "hangs"
        if self.said:
            return self.said.removeprefix("running: ").partition(" (cuda")[0]
        return "as if right" if is_right(self.results) else "wrong result"

    def finding(self) -> str:
        """What a tool of compute-sanitizer found, or ""."""
        if self.hangs:
            return "hangs"
        count = re.search(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", self.text)
        if count is None:
            return f"exit {self.status}"
        first = re.search(r"========= (?:Error: |Warning: )?((?!COMPUTE|ERROR|RACE).*)", self.text)
        what = first[1].partition(" at ")[0] if first else "it found something"
        return "" if count[1] == "0" else what


def run(
    built: Path, kernel: str, launch: Mapping[str, int], values: Path | None, tool: str | None
) -> Answer:
    command = [sys.executable, library.__file__, str(built), kernel, json.dumps(dict(launch))]
    if values is not None:
        command.append(str(values))
    if tool is not None:
        sanitizer = ["/usr/local/cuda/bin/compute-sanitizer", "--tool", tool]
        command = [*sanitizer, "--error-exitcode", "9", *command]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS if tool is None else TOOL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Answer("", None)
    return Answer(done.stdout, done.returncode)


def summary(findings: Mapping[str, str]) -> str:
    """Of all tools."""
    named = [f"{tool}: {said}" for tool, said in findings.items() if said and said != "hangs"]
    if named:
        return "; ".join(named)
    return "hangs" if "hangs" in findings.values() else "nothing"


class Runs:
    """Runs kernels in processes, as many at a time as `pool` has threads."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        sources = {library.KERNELS, *(right.source for right in table.RIGHT)}
        self.built = dict(pool.map(lambda source: (source.stem, build(source, folder)), sources))
        self.inputs = {right.name: folder / f"{right.name}.bin" for right in table.RIGHT}
        for right in table.RIGHT:
            self.inputs[right.name].write_bytes(right.values.numpy().tobytes())

    def ask(self, kernel: str, right: table.Right | None) -> Callable[[], tuple[Answer, str]]:
        """Begins a plain run and compute-sanitizer's; the function returned waits for both.

        Without `right`, a kernel of kernels.cu.
        """
        how = (
            (self.built["kernels"], kernel, {}, None)
            if right is None
            else (self.built[right.file], kernel, right.launch, self.inputs[right.name])
        )
        answers = self.pool.map(lambda tool: run(*how, tool), (None, *TOOLS))

        def wait() -> tuple[Answer, str]:
            plain, *tools = answers
            return plain, summary(dict(zip(TOOLS, map(Answer.finding, tools), strict=True)))

        return wait


def build(source: Path, folder: Path) -> Path:
    flags = [] if source.stem in NOT_CHECKED else ["-DDIGLOT_CHECKED"]
    return library.build_for_gpu(folder, flags, source)


def main(results: Path) -> int:
    verdicts, bugs = {}, {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        runs = Runs(Path(folder), pool)
        rights = [(right, runs.ask(right.kernel, right)) for right in table.RIGHT]
        planted = [(bug, runs.ask(bug.kernel, bug.right)) for bug in table.BUGS]
        elsewhere = [(kernel, runs.ask(kernel, None)) for kernel in ELSEWHERE]
        for right, wait in rights:
            plain, found = wait()
            verdicts[right.name] = plain.verdict(right.is_right)
            print(f"right: {right.name}: {verdicts[right.name]}; {found}", flush=True)
        for bug, wait in planted:
            plain, found = wait()
            bugs[bug.name] = [plain.verdict(bug.right.is_right), found]
            print(f"{bug.name}: {'; '.join(bugs[bug.name])}", flush=True)
        facts = {
            "gpu": torch.cuda.get_device_name(),
            "date": date.today().isoformat(),
            "commit": commit(),
            "versions": versions(),
            "right": verdicts,
            "bugs": bugs,
        }
        results.write_text(json.dumps(facts, indent=2) + "\n")
        for kernel, wait in elsewhere:
            plain, found = wait()
            verdict = "hangs" if plain.hangs else plain.said or str(plain.results.tolist())
            print(f"kernels.{kernel}: {verdict}; {found}", flush=True)
    return sum(verdict != "as if right" for verdict in verdicts.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    sys.exit(main(parser.parse_args().results))
