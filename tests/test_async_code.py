"""Asynchronous copies and messages of CUDA's kernels: what waits for them, in the compiled code.

The interpreter shows that the source waits. Here the compiled code is read, to show that the
compiler has kept the waits, and so is that of mutations.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from async_code import (
    faults_of_copies,
    faults_of_early_start,
    faults_of_messages,
)
from backends import needs_extension
from test_grid_barrier_code import write_replaced

import diglot
from diglot.tools import cuda_library
from diglot.tools.machine_code import demangle, dump, read_listing

# As cuobjdump prints a loop that copies what the next round reads, behind one round's exchange.
LOOP = """
/*0000*/  LDGSTS.E.BYPASS.128 [R13], desc[UR8][R10.64] ;
/*0010*/  LDGDEPBAR ;
/*0020*/  IMAD.MOV.U32 R85, RZ, RZ, RZ ;
/*0030*/  DEPBAR.LE SB0, 0x0 ;
/*0034*/  LOP3.LUT R46, R85, 0x1, RZ, 0xc0, !PT ;
/*0038*/  LEA R110, R46, UR4, 0x3 ;
/*0040*/  LDS.128 R4, [R13] ;
/*0050*/  @P2 LDGSTS.E.BYPASS.128 [R13], desc[UR8][R10.64] ;
/*0060*/  LDGDEPBAR ;
/*0070*/  SHF.R.U32.HI R42, RZ, 0x1, R85 ;
/*0080*/  LOP3.LUT R49, R42, 0x1, RZ, 0xc0, !PT ;
/*0090*/  SHF.L.U32 R49, R49, 0x1f, RZ ;
/*00a0*/  @!P1 SYNCS.ARRIVE.TRANS64 RZ, [R110+URZ+0x200], R42 ;
/*00b0*/  SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R110+URZ+0x200], R49 ;
/*00c0*/  @!P0 BRA 0x100 ;
/*00d0*/  VIADD R85, R85, 0x1 ;
/*00e0*/  @P3 BRA 0x30 ;
/*00f0*/  EXIT ;
/*0100*/  SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R110+URZ+0x200], R49 ;
/*0110*/  @!P0 BRA 0x100 ;
/*0120*/  BRA 0xd0 ;
"""


def test_waits_are_read():
    assert faults_of_copies(LOOP) == faults_of_messages(LOOP) == []
    without = LOOP.replace("DEPBAR.LE SB0, 0x0 ", "NOP ")
    assert faults_of_copies(without) == [
        "what is copied is read before the first wait",
        "nothing waits for copies",
        "a loop copies and reads, and goes round without a wait",
    ]
    once = LOOP.replace("@P3 BRA 0x30", "@P3 BRA 0x40")
    assert faults_of_copies(once) == ["a loop copies and reads, and goes round without a wait"]


@pytest.mark.parametrize(
    ("right", "wrong", "parities"),
    [
        ("R49 ;\n/*00c0", "RZ ;\n/*00c0", [0] * 8),
        ("RZ, 0x1, R85", "RZ, 0x0, R85", [0, 1] * 4),
        ("RZ, 0x1, R85", "RZ, 0x2, R85", [0] * 4 + [1] * 4),
        ("VIADD R85, R85, 0x1 ", "NOP ", [0] * 8),
    ],
)
def test_parities_are_read(right, wrong, parities):
    assert right in LOOP
    found = faults_of_messages(LOOP.replace(right, wrong))
    assert f"of many exchanges parities are {parities}" in found


# Of whole accesses, in bfloat16: norms' derivatives, and what forward passes share.
SAMPLE = re.compile(
    r"(layer|rms)_norm_backward_(rows|streaming)<NormShape<\d, true>, __nv_bfloat16>"
    r"|(layer_norm|softmax)_forward_rows<RowShape<[^>]*>, __nv_bfloat16, __nv_bfloat16>"
    r"|layer_norm_backward_sum<"
)
# Launches that begin early: sums over groups of rows, and the second walk over columns in two
# launches.
BEGINS_EARLY = re.compile(r"norm_backward_sum<|\(Walk\)3")


def test_barriers_that_do_not_alternate_are_seen():
    one = LOOP.replace("LEA R110, R46, UR4, 0x3", "ULEA R110, UR5, UR4, 0x3")
    assert faults_of_messages(one) == ["every exchange is by one barrier"]


EARLY = """
/*0000*/  CCTL.E.PF2 [R2] ;
/*0010*/  ACQBULK ;
/*0020*/  LDG.E.128 R4, desc[UR8][R10.64] ;
/*0030*/  EXIT ;
"""


def test_early_starts_are_read():
    assert faults_of_early_start(EARLY) == []
    lines = EARLY.splitlines(keepends=True)
    without = "".join(line for line in lines if "ACQBULK" not in line)
    assert faults_of_early_start(without) == ["it does not wait for the launch before"]
    late = "".join([*lines[:2], lines[3], lines[2], *lines[4:]])
    assert faults_of_early_start(late) == ["LDG stands before the wait for the launch before"]


@pytest.fixture(scope="module")
def listings():
    """By name, the code of a sample of CUDA's kernels of rows: to read one takes half a second."""
    architecture = cuda_library.code_that_runs("sm_90")
    if architecture != "sm_90a":
        pytest.skip("the extension has no code for sm_90a")
    symbols = {
        entry.symbol: name
        for entry in cuda_library.library_usage()[architecture]
        if SAMPLE.match(name := demangle(entry.symbol))
    }
    library = str(cuda_library.library_path())
    text = dump("-sass", "-arch", architecture, "-fun", ",".join(symbols), library)
    return {symbols[symbol]: listing for symbol, listing in read_listing(text).items()}


def kinds_of(names) -> set[str]:
    return {name.partition("<")[0] for name in names}


NORMS = {f"{op}_backward_rows" for op in ("layer_norm", "rms_norm")}


@pytest.mark.slow
@pytest.mark.compiled
@needs_extension
def test_copies_are_waited_for(listings):
    copying = {name: of for name, of in listings.items() if "LDGSTS" in of}
    assert kinds_of(copying) >= NORMS | {"softmax_forward_rows", "layer_norm_forward_rows"}
    assert not {name: faults for name, of in copying.items() if (faults := faults_of_copies(of))}
    # What the waits are taken out of is found to lack them, every kernel.
    without = {name: re.sub(r"DEPBAR\.LE .*;", "NOP ;", of) for name, of in copying.items()}
    assert all(map(faults_of_copies, without.values()))


@pytest.mark.slow
@pytest.mark.compiled
@needs_extension
def test_messages_are_waited_for_by_their_parity(listings):
    telling = {name: of for name, of in listings.items() if "PHASECHK" in of}
    assert kinds_of(telling) >= NORMS | {"softmax_forward_rows", "layer_norm_backward_streaming"}
    assert not {name: faults for name, of in telling.items() if (faults := faults_of_messages(of))}
    again = [name for name in telling if re.search(r"norm_backward_|\(Walk\)1", name)]
    assert kinds_of(again) >= NORMS
    for name in again:
        constant = re.sub(r"(SYNCS\.PHASECHK.*, )U?R\d+ ;", r"\1RZ ;", telling[name])
        assert faults_of_messages(constant), name


@pytest.mark.slow
@pytest.mark.compiled
@needs_extension
def test_the_launch_before_is_waited_for(listings):
    early = {name: of for name, of in listings.items() if BEGINS_EARLY.search(name)}
    assert kinds_of(early) >= {"layer_norm_backward_sum", "softmax_forward_rows"}
    assert not {name: faults for name, of in early.items() if (faults := faults_of_early_start(of))}


KERNEL = """
#include "diglot/norm/backward_resident.cuh"
using Shape = diglot::NormShape<4, true>;
__global__ void kernel(diglot::NormRows rows, diglot::NormGradients<float> arrays) {
  diglot::norm_backward_resident<Shape, float, true>(rows, arrays);
}
"""
WAIT = "wait_for_copies_before(rows.stages - 1);"
PARITY = "arrived.wait(number / 2 % 2)"
MUTATIONS = {
    "nothing": ("norm/backward_resident.cuh", WAIT, WAIT),
    "no wait": ("norm/backward_resident.cuh", WAIT, ""),
    "a wait before the loop": (
        "norm/backward_resident.cuh",
        f"next = part.statistics(row + step);\n    {WAIT}",
        f"if (row < step) {WAIT}\n    next = part.statistics(row + step);",
    ),
    "one parity": ("sync/cluster.cuh", PARITY, "arrived.wait(0)"),
    "one barrier": ("sync/cluster.cuh", "number % 2", "0"),
    "that of the turn": ("sync/cluster.cuh", PARITY, "arrived.wait(number % 2)"),
    "the other one": ("sync/cluster.cuh", PARITY, "arrived.wait((number / 2 + 1) % 2)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(tmp_path, mutation):
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    file, *replace = MUTATIONS[mutation]
    headers = Path(diglot.get_include()) / "diglot"
    shutil.copytree(headers, tmp_path / "diglot")
    write_replaced(headers / file, tuple(replace), tmp_path / "diglot" / file)
    (tmp_path / "kernel.cu").write_text(KERNEL)
    command = [nvcc, "-std=c++17", "-O3", "-cubin", "-arch=sm_90a", f"-I{tmp_path}"]
    command += ["--expt-relaxed-constexpr", tmp_path / "kernel.cu", "-o", tmp_path / "cubin"]
    subprocess.run(command, check=True)
    (listing,) = read_listing(dump("-sass", str(tmp_path / "cubin"))).values()
    found = [bool(faults_of_copies(listing)), bool(faults_of_messages(listing))]
    of_copies = "wait" in mutation
    assert found == [of_copies, mutation != "nothing" and not of_copies]
