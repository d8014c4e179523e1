"""Runs all lessons, each in a process of its own, and saves a JSON of each one's figures.

    python examples/lessons/run_all.py FOLDER

CUDA C++ is compiled first, all files at once. Then processes start ahead of their turn, because a
process takes seconds to import PyTorch; one lesson at a time runs (`LESSON_TURN`). A lesson that
fails is named at the end, and the others are not touched.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lesson import HERE, ON_GPU, compile_cuda

AHEAD, SECONDS = 4, 900  # the seconds hold the wait for a turn, too


def lessons() -> list[str]:
    """The names of all lessons."""
    files = (path for path in HERE.glob("*.py") if path != Path(__file__).resolve())
    return sorted(path.stem for path in files if "def main(" in path.read_text())


def compile_all() -> list[str]:
    """Compiles every .cu file for this GPU; what went wrong, which its lesson says again."""
    with ThreadPoolExecutor() as pool:
        made = [
            pool.submit(compile_cuda, path.stem, "int main(" in path.read_text())
            for path in HERE.glob("*.cu")
        ]
    return [str(of.exception()) for of in made if of.exception() is not None]


def run(name: str, folder: Path, turn: Path) -> bool:
    """Runs a lesson when it is its turn, and prints what it printed; whether it succeeded."""
    begin = time.monotonic()
    command = [sys.executable, str(HERE / f"{name}.py"), "--save", str(folder / f"{name}.json")]
    environment = {**os.environ, "LESSON_TURN": str(turn)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        print(f"=== {name}: not done after {SECONDS} s\n", flush=True)
        return False
    errors = "" if done.returncode == 0 else done.stderr[-3000:]
    print(f"=== {name}, {time.monotonic() - begin:.0f} s\n{done.stdout}{errors}", flush=True)
    return done.returncode == 0


def main() -> None:
    """Runs them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the figures go, <lesson>.json")
    parser.add_argument("--only", nargs="*", default=lessons(), help="names of lessons")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if ON_GPU:
        compile_all()
    with tempfile.NamedTemporaryFile() as turn, ThreadPoolExecutor(AHEAD) as pool:
        done = {
            name: pool.submit(run, name, arguments.folder, Path(turn.name))
            for name in arguments.only
        }
        failed = [name for name, future in done.items() if not future.result()]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
