"""examples/lessons/run_all.py runs all lessons, and docs/lessons.md shows their figures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from backends import DEVICE, needs_cuda
from lessons import FOLDER, PAGE, load

from diglot.bench import lesson_tables, reports, result_files

WITHOUT_FIGURES = {"printing", "ptx", "swizzle"}  # a GPU adds nothing to these


def listed():
    """The lessons that the page lists."""
    return re.findall(r"^\| `(\S+\.py)` \|", PAGE.read_text(), re.MULTILINE)


def test_the_page_lists_them_all(monkeypatch):
    programs = {f"{name}.py" for name in load("run_all", monkeypatch).lessons()}
    assert set(listed()) == programs and len(listed()) == len(programs)


LESSONS = {
    "good": "print('told'); save([{'title': 'One', 'rows': [{'n': 1}]}])",
    "bad": "save([{'title': 'Ready', 'rows': []}]); raise ValueError('no such thing')",
    "slow": "save([]); time.sleep(600)",
    "late": "save([{'title': 'Late', 'rows': []}])",
}
SAVES = """
import json, pathlib, sys, time
def save(tables):
    pathlib.Path(sys.argv[2]).write_text(json.dumps({"tables": tables}))
"""


def test_a_lesson_stops_no_other(tmp_path, monkeypatch, capsys):
    run_all = load("run_all", monkeypatch)
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    monkeypatch.setattr(run_all, "AHEAD", 1)
    for name, code in LESSONS.items():
        (tmp_path / f"{name}.py").write_text(SAVES + code)
    made = run_all.run_all(list(LESSONS), seconds=2)
    assert [(row["workload"], row["title"]) for row in made["rows"]] == [
        ("good", "One"),
        ("bad", "Ready"),
    ]
    failed = made["failed"]
    assert failed["bad"].startswith("exit status 1") and "no such thing" in failed["bad"]
    assert (failed["slow"], failed["late"]) == (
        "not done: the time was up",
        "not run: the time was up",
    )
    assert made["incomplete"] == "3 of 4 lessons failed"
    assert "=== good, 0 s\ntold" in capsys.readouterr().out
    reports.save(made, tmp_path / "lessons.json")
    with pytest.raises(result_files.OtherFile, match="results of another kind"):
        result_files.read_file(tmp_path / "lessons.json")


TAKES_TURNS = """
import lesson, sys, time
lesson.ON_GPU, lesson.TURN_SECONDS = True, float(sys.argv[1])
with lesson.turn():
    print("begins", flush=True)
    time.sleep(2)
print("ends", flush=True)
"""


@pytest.mark.slow
def test_lessons_take_turns(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "LESSON_TURN": str(tmp_path / "turn")}

    def start(seconds):
        command = [sys.executable, "-c", TAKES_TURNS, str(seconds)]
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.PIPE)

    with (tmp_path / "said").open("a") as file:
        both = [start(60), start(60)]
        assert [process.wait() for process in both] == [0, 0]
    assert (tmp_path / "said").read_text().split() == ["begins", "ends"] * 2
    with (tmp_path / "said").open("a") as file:
        _, error = (process := start(0.1)).communicate()
    assert process.returncode == 1 and b"Timeout" in error and b"in <module>" in error


# --- the page -------------------------------------------------------------------------------------

REPORT = {
    "op": "lessons",
    "gpu": "a GPU",
    "versions": {},
    "date": "2026-01-02",
    "commit": "fed",
    "rows": [
        {
            "workload": "stages",
            "title": "Two",
            "rows": [{"a": "x_y", "µs": 1.2345, "gone": None}, {"a": "|", "µs": None}],
        },
    ],
    "failed": {"stages": "exit status 1", "pdl": "exit status 1"},
}


def test_figures_of_the_page():
    text = "".join(
        f"<!-- {n}:begin -->\nold\n<!-- {n}:end -->\n" for n in ("measured", "stages", "pdl")
    )
    made = lesson_tables.with_figures(text, [REPORT])
    measured, stages, pdl = made.split(":begin -->\n")[1:]
    assert measured.startswith("Measured on: a GPU, ") and "commit fed." in measured
    assert stages.startswith(
        "Two (a GPU)\n\n| a | µs |\n|---|---|\n| `x_y` | 1.23 |\n| \\| | – |\n"
    )
    assert "The lesson failed here" in stages
    assert pdl == f"{lesson_tables.NOT_YET}<!-- pdl:end -->\n"
    assert lesson_tables.with_figures(made, [REPORT]) == made


def test_the_page_holds_what_the_results_say():
    (made,) = lesson_tables.render().values()
    assert made == PAGE.read_text()
    marked = set(re.findall(r"<!-- (\w+):begin -->", made))
    assert marked == {"measured"} | {Path(name).stem for name in listed()} - WITHOUT_FIGURES


def column(table, name):
    return [row[name] for row in table["rows"]]


# What a column of each lesson's figures must say, on every machine that has nvcc: the table's
# number, the column's name, and its content or a check of it.
SAID = {
    "autotune": (0, "bytes a load", [4, 4, 4]),
    "bank_conflicts": (0, "steps of 32 reads", [None, 32, 1, 1, None]),
    "block_size": (0, "bytes a load", lambda widths: set(widths) == {4, 8, 16}),
    "carveout": (0, "the window", lambda said: said.count("fits") == 10),
    "chosen_kernels": (0, "kernels", lambda kernels: kernels[0] == 9),
    "device_memory": (1, "exit status", [int(DEVICE == "cpu")]),
    "dot_types": (0, "tensor cores by", lambda said: said.index("none") == len(said) - 1 == 4),
    "fusion": (1, "times the bytes", lambda times: times[:3] == [11, 1, 1]),
    "grid_of_meta": (0, "blocks", lambda blocks: blocks[0] > blocks[1]),
    "hierarchy": (-1, "PTX", lambda ptx: "%smid" in ptx[0]),
    "memory_access": (0, "sectors for 32 reads", lambda sectors: sectors[2:6] == [8, 8, 16, 16]),
    "mlp_profile": (1, "kernel", lambda kernels: len(kernels) > 1),
    "occupancy": (0, "blocks", [8, 8, 6, 3, 2, 1]),
    "past_l1": (0, "CUDA C++ (SASS)", ["LDG.E.STRONG.SM", "LDG.E.STRONG.GPU"]),
    "pdl": (0, "instructions", lambda found: found[0] == "PREEXIT, ACQBULK"),
    "persistent_softmax": (0, "rows each", lambda rows: rows[0] == rows[2] == 1 < min(rows[1::2])),
    "printing": (0, "printed", lambda lines: {li[-7:] for li in lines} == {" x = -5", "x = nan"}),
    "profile_study": (1, "times as long", lambda ratio: ratio[0] > 2),
    "ptx": (0, "st", ["8 st.global.b32", "2 st.global.v4.b32"]),
    "random_rows": (0, "kept", lambda kept: kept[0] == kept[1] and 0.6 < kept[0] < 0.9),
    "same_line": (0, "lines", lambda lines: lines[0] > lines[1] >= lines[2] == 1),
    "short_product": (0, "way", lambda ways: int(ways[0].split()[0]) < 25),
    "spilling": (0, "spilled bytes", lambda spilled: spilled[0] == 0 < spilled[3]),
    "stages": (0, "fits 227 KiB", ["yes"] * 6 + ["no"]),
    "swizzle": (0, "steps of a read", [8, 1, 1]),
    "three_axes": (0, "blocks", lambda blocks: blocks[0] == blocks[1] > 1),
    "two_halves": (0, "fits", ["yes", "yes", "no", "no", "yes", "yes", "yes", "no"]),
    "two_listings": (0, "bytes a load", [4, 16]),
}


@needs_cuda
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_lessons_run(tmp_path, monkeypatch):
    run = [sys.executable, str(FOLDER / "run_all.py"), "lessons.json"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made = json.loads((tmp_path / "lessons.json").read_text())
    saved = defaultdict(list)
    for table in made["rows"]:
        saved[table["workload"]].append(table)
    assert made["failed"] == {} and {Path(name).stem for name in listed()} == {*SAID, "timing"}
    assert set(saved) == {*SAID, *(["timing"] if DEVICE == "cuda" else [])}
    if load("lesson", monkeypatch).find_nvcc() is not None:
        for name, (number, title, said) in SAID.items():
            values = column(saved[name][number], title)
            assert said(values) if callable(said) else values == said, (name, values)
    assert load("run_all", monkeypatch).compile_all() == []
    assert "<svg" in (tmp_path / "out/mlp_flame.svg").read_text()
    assert made["gpu"] == (torch.cuda.get_device_name() if DEVICE == "cuda" else None)
