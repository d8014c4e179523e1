"""Ops whose programs wait for each other, compiled from Triton: their grid barrier is in its place.

Triton's interpreter runs the code before a barrier and the code behind it as two launches, so that
a barrier that is missing changes nothing there. So the compiled code is read, and so is that of
mutations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from apart import COMMAND, run_apart
from test_mutations import copy_of_sources

import diglot

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EVENTS = {
    "arrival": re.compile(r"\batom\.global\.gpu\.acq_rel\.add\b"),
    "poll": re.compile(r"\bld\.global\.gpu\.acquire\b|\batom\.global\.gpu\.acquire\b"),
    "barrier": re.compile(r"\bbar\.sync\b|\bbarrier\.sync\b"),
    "store": re.compile(r"\bst\.global\b"),
    "load": re.compile(r"\bld\.global\b"),
}


def events_of(ptx: str) -> list[str]:
    """What of a kernel's instructions matters here, in their order in the text."""
    code = [line.partition("//")[0] for line in ptx.splitlines()]
    found = (next((e for e, of in EVENTS.items() if of.search(line)), None) for line in code)
    return [event for event in found if event is not None]


def faults_of(ptx: str) -> list[str]:
    """Faults of a kernel that has one grid barrier. In a right one all threads store partial
    results, the program arrives and polls, and then all threads go on and load.
    """
    events = events_of(ptx)
    if events.count("arrival") != 1:
        return [f"{events.count('arrival')} grid barriers"]
    at = events.index("arrival")
    before, behind = events[:at], events[at + 1 :]
    faults = []
    stores = [i for i, event in enumerate(before) if event == "store"]
    if not stores:
        faults.append("no partial result is stored before the grid barrier")
    elif "barrier" not in before[stores[-1] :]:
        faults.append("a program arrives before all of its threads have stored")
    polls = [i for i, event in enumerate(behind) if event == "poll"]
    if not polls:
        return [*faults, "nobody polls"]
    if {"store", "load"} & set(behind[: polls[0]]):
        faults.append("an access lies between arrival and poll")
    following = behind[polls[-1] + 1 :]
    if "load" not in following:
        faults.append("no partial result is loaded behind the grid barrier")
    elif "barrier" not in following[: following.index("load")]:
        faults.append("threads go on before one has seen that all have arrived")
    return faults


def compile_op(op: str, folder: Path, package: Path) -> dict[str, str]:
    """By name, the PTX of the kernels that a call of the op launches; of diglot in a folder."""
    command = ["inspect", op, "--backend=triton", "--stage=ptx", "--shape=64x1024"]
    command += [f"--save={folder}", "--force"]
    variables = {"PYTHONPATH": str(package)}
    done = run_apart(COMMAND, *command, environment=variables, folder=package)
    assert done.returncode == 0, done.stderr
    return {path.stem: path.read_text() for path in folder.rglob("*.ptx")}


class Mutation(NamedTuple):
    """A piece of Triton's source, another that takes its place, and the fault that this makes."""

    file: str
    right: str
    wrong: str
    faults: list[str]


# An op's kernels with a grid barrier each.
OPS = {"standardize": 2, "global_softmax": 2, "clip_grad_norm_": 1}
SYNC = "    if PHASE == ALL_PHASES:\n        grid_barrier.sync(barrier_state)\n"
MUTATIONS = {
    "both barriers are missing": Mutation("standardize.py", SYNC, "", ["0 grid barriers"]),
    "nobody waits": Mutation(
        "lib/sync/grid_barrier.py",
        "    wait(barrier_state, before, now)\n\n\n",
        "\n\n",
        ["nobody polls"],
    ),
}


@pytest.mark.parametrize(
    "op",
    [pytest.param(op, marks=pytest.mark.compiled) if op == "global_softmax" else op for op in OPS],
)
def test_ops_have_their_barriers(tmp_path, op):
    kernels = compile_op(op, tmp_path, Path(diglot.__file__).parents[1])
    assert not {name: faults for name, ptx in kernels.items() if (faults := faults_of(ptx))}
    assert len(kernels) == OPS[op]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(tmp_path, mutation):
    file, right, wrong, faults = MUTATIONS[mutation]
    path = copy_of_sources(tmp_path)["triton_ops"] / file
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    kernels = compile_op("standardize", tmp_path / "ptx", tmp_path / "python")
    assert [faults_of(ptx) for ptx in kernels.values()] == [faults] * OPS["standardize"]
