"""bench/collectives.py finds wrong results, ends what hangs, and judges by the project's bars."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from backends import DEVICE
from peers import in_group

from diglot import distributed
from diglot.bench import collective_cases, collective_soak, collective_tables, collectives

ROOM = 16 << 10
CPU = pytest.mark.skipif(DEVICE == "cuda", reason="ranks are interpreted")
OPS = {"all_reduce": 1024, "all_gather": 1024, "reduce_scatter": 1024}


def memory_of_triton():
    torch.set_num_threads(1)
    return collective_cases.Memory(ROOM, ["triton"])


def verdicts(rank):
    """By op and way: whether right results pass, and whether one wrong element is found."""
    memory, found = memory_of_triton(), {}
    for op, size in OPS.items():
        case = collective_cases.Case(memory, op, size)
        for contender in case.contenders:
            calls = collectives.Calls(case, contender)
            calls.verify()
            outputs = {slot: (made[0].clone(),) for slot, made in calls.outputs.items()}
            last = outputs[case.slots - 1][0].view(torch.int16)
            last[-1] += 2 if rank == 1 else 0
            try:
                case.verify(contender, outputs, 1)
                found[op, contender.way] = False
            except ValueError:
                found[op, contender.way] = True
    return found


@CPU
def test_wrong_results_are_found():
    """Of all ways, by the rank that has one."""
    zero, one = in_group(2, verdicts)
    assert len(one) == 9 + 2 + 2 and all(one.values())
    assert {op for (op, _), is_found in zero.items() if is_found} == set()


def soaked(rank, all_reduce):
    memory = memory_of_triton()
    distributed.all_reduce = all_reduce  # of this process alone

    def gathered(mine):
        every = [None] * 2
        dist.all_gather_object(every, mine)
        return every

    return collective_soak.soak(memory, "triton", 8, gathered)


@CPU
@pytest.mark.parametrize("fault", ["", "of the launch before", "one element too many"])
def test_soak(fault):
    right, before = distributed.all_reduce, []

    def all_reduce(x, out, **options):
        right(x, out=out, **options)
        if fault == "one element too many":
            torch.as_strided(out, (out.numel() + 1,), (1,))[-1] = 1
        elif fault:
            before.append(out.clone())
            out[0] = before[-2][0] if len(before) > 1 else out[0]

    first, second = in_group(2, lambda rank: soaked(rank, all_reduce))
    assert first["calls"] == 8 and first["wrong"] == second["wrong"]
    assert first["verified"] == (fault == "") and (sum(first["wrong"]) > 0) == (fault != "")


def test_processes_end():
    def start(*codes):
        return [
            subprocess.Popen([sys.executable, "-c", f"import time, sys; {code}"]) for code in codes
        ]

    assert collectives.watch(start("sys.exit(0)", "sys.exit(0)"), 60) == ""
    assert "[-9, " in collectives.watch(
        start("import os; os.kill(os.getpid(), 9)", "time.sleep(60)"), 60
    )
    assert collectives.watch(start("time.sleep(60)"), 0.5) == "ended after 0 s"


def row_of(op, provider, us, way="", size=1024, **more):
    row = {"op": op, "provider": provider, "way": way, "bytes": size, "shape": [128, 8192]}
    return {**row, "time_us": us, "samples": 7, "verified": True, "bars": [], **more}


def test_bars_and_tables():
    failed = row_of("all_reduce", "cuda", 0, "push", reason="rank 1: it broke")
    del failed["time_us"]
    norm = collective_tables.NORM
    rows = [
        row_of("all_reduce", "nccl", 10.0),
        row_of("all_reduce", "torch one-shot", 5.0),
        row_of("all_reduce", "cuda", 5.05, "workspace"),
        row_of("all_reduce", "triton", 5.2, "workspace"),
        row_of("all_reduce", "triton", 4.0, "pull"),
        failed,
        row_of("all_gather", "nccl", 100.0, size=32 << 20),
        row_of("all_gather", "cuda", 103.0, "staged", size=32 << 20),
        row_of("all_gather", "triton", 103.2, "staged", size=32 << 20),
        row_of(norm, "nccl", 20.0, "then add_rms_norm by cuda"),
        row_of(norm, "cuda", 16.0, "two launches, staged"),
        row_of(norm, "cuda", 14.0, "one launch, staged"),
        row_of("barrier", "cuda", 3.1, size=0),
        row_of("soak", "cuda", 0, calls=8, eager=4, wrong=[0, 0]),
    ]
    judged = collective_tables.judge(rows, 2)
    met = {
        (row["op"], row["provider"], row["way"]): [bar["met"] for bar in row["bars"]]
        for row in judged
        if row["bars"]
    }
    assert met == {
        ("all_reduce", "cuda", "workspace"): [False, True],
        ("all_reduce", "triton", "workspace"): [True, False],
        ("all_gather", "cuda", "staged"): [True],
        ("all_gather", "triton", "staged"): [False],
        (norm, "cuda", "one launch, staged"): [True, False],
        ("barrier", "cuda", ""): [False],
    }
    facts = {"gpu": "NVIDIA H200", "date": "today", "commit": "0" * 12, "versions": {}}
    file = {"ranks": {"2": {**facts, "op": "collectives", "rows": judged}}}
    text = collective_tables.markdown([file])
    assert text.count("✗") == 1 + 5 and "### 2 × NVIDIA H200" in text
    assert "| 1 KiB | 10.00 | 5.00 | 5.05 ✗ | 5.20 ✗ |" in text
    assert "- push, 1 KiB: rank 1: it broke" in text and "Wrong elements, by rank: 0, 0." in text


def test_a_run_keeps_what_others_measured(tmp_path, monkeypatch):
    class Ranks:
        rank, ranks = 0, 2

    for op in ("barrier", "all_reduce", "barrier"):
        session = collectives.Session(Ranks(), tmp_path / "collectives.json", None)
        session.rows = [row_of(op, "cuda", 2.0, "staged")]
        session.write()
    (report,) = collectives.read(tmp_path / "collectives.json")["ranks"].values()
    assert [row["op"] for row in report["rows"]] == ["all_reduce", "barrier"]
    monkeypatch.setenv("DIGLOT_COMMIT", "another")
    session = collectives.Session(Ranks(), tmp_path / "collectives.json", None)
    session.write("1 of 2 sizes")
    (report,) = collectives.read(tmp_path / "collectives.json")["ranks"].values()
    assert report["rows"] == [] and report["incomplete"] == "1 of 2 sizes"
