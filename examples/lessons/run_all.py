"""Runs all lessons, each in a process of its own, and saves their figures in one JSON.

    python examples/lessons/run_all.py lessons.json

CUDA C++ is compiled first, all files at once. Then processes start ahead of their turn, because a
process takes seconds to import PyTorch. On a GPU one lesson runs at a time (`LESSON_TURN`), and the
longest come last. A lesson that fails, takes too long or comes too late does not stop the others.
The file says why, and has the tables that were ready. Saved as bench/results/<gpu>/lessons.json,
it is the source of the figures of docs/lessons.md (`make pages`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from lesson import HERE, ON_GPU, TURN, compile_cuda

from diglot.bench import reports
from diglot.files import check_writable

SECONDS = 900
# PyTorch's compiler or its profiler takes long.
LAST = ("chosen_kernels", "fusion", "mlp_profile", "profile_study")
AHEAD = max(2, min(6, (os.cpu_count() or 1) // 2))


def lessons() -> list[str]:
    """The names of all lessons."""
    files = (path for path in HERE.glob("*.py") if path != Path(__file__).resolve())
    names = [path.stem for path in files if "def main(" in path.read_text()]
    return sorted(names, key=lambda name: (name in LAST, name))


def compile_all() -> list[str]:
    """Compiles every .cu file for this GPU; what went wrong, which its lesson says again."""
    with ThreadPoolExecutor() as pool:
        made = [
            pool.submit(compile_cuda, path.stem, "int main(" in path.read_text())
            for path in HERE.glob("*.cu")
        ]
    return [str(of.exception()) for of in made if of.exception() is not None]


def run(name: str, folder: Path, deadline: float) -> str | None:
    """Runs a lesson when it is its turn, and prints what it printed; why it failed."""
    begin = time.monotonic()
    if begin >= deadline:
        return "not run: the time was up"
    command = [sys.executable, str(HERE / f"{name}.py"), "--save", str(folder / f"{name}.json")]
    environment = {**os.environ, TURN: str(folder / "turn")}
    with (folder / f"{name}.log").open("w+") as log:
        # A file: an orphaned process of a compiler would keep a pipe open.
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            status = process.wait(deadline - begin)
            error = None if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            error = "not done: the time was up"
        log.seek(0)
        output = log.read()
    print(f"=== {name}, {time.monotonic() - begin:.0f} s\n{output}", flush=True)
    return error and f"{error}\n{output[-2000:]}".rstrip().replace(f"{HERE}/", "")


def report(folder: Path, errors: dict[str, str | None]) -> dict[str, Any]:
    """The tables that the lessons saved, as rows of one report, and the errors."""
    rows = []
    for name in errors:
        path = folder / f"{name}.json"
        tables = json.loads(path.read_text())["tables"] if path.exists() else []
        rows += [{"workload": name, **table} for table in tables]
    failed = {name: error for name, error in errors.items() if error is not None}
    more = {"incomplete": f"{len(failed)} of {len(errors)} lessons failed"} if failed else {}
    return reports.make_report("lessons", rows, failed=failed, **more, **reports.LESSONS)


def run_all(names: Sequence[str], seconds: float) -> dict[str, Any]:
    """Runs lessons, and returns their report."""
    deadline = time.monotonic() + seconds
    if ON_GPU:
        compile_all()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AHEAD) as pool:
        one = partial(run, folder=Path(folder), deadline=deadline)
        return report(Path(folder), dict(zip(names, pool.map(one, names), strict=True)))


def main() -> None:
    """Runs them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="where the figures go")
    parser.add_argument("--only", nargs="*", default=lessons(), help="names of lessons")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all lessons")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    arguments = parser.parse_args()
    try:
        check_writable(arguments.file, arguments.force)
    except ValueError as error:
        parser.error(str(error))
    made = run_all(arguments.only, arguments.seconds)
    reports.save(made, arguments.file)
    if made["failed"]:
        sys.exit(f"failed: {', '.join(made['failed'])}")


if __name__ == "__main__":
    main()
