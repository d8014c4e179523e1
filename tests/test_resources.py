"""Compiled kernels: how their code is read, and that of CUDA's: no spills, wide accesses."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch
from backends import needs_extension

from diglot.tools import cuda_library, machine_code, resources
from diglot.tools.cuda_library import cuda_kernel_names, cuda_kernels
from diglot.tools.machine_code import Code, ResourcesUnavailable
from diglot.tools.resources import KernelResources, TensorLike

TINY = "FlatShape<1, 1>,"
TYPES = {"__half": 2, "__nv_bfloat16": 2, "short": 2, "float": 4, "int": 4, "double": 8, "long": 8}


SASS = """
		Function : _Z3foov
        /*0000*/  @P0 LDG.E.128.CONSTANT R4, desc[UR10][R14.64] ;
        /*0010*/      LDG.E.U16 R4, desc[UR10][R14.64] ;
        /*0020*/      LDG.E R4, desc[UR10][R14.64] ;
        /*0030*/      STG.E.64 desc[UR10][R8.64+0x4], R5 ;
        /*0040*/      STL.64 [R1], R4 ;
        /*0050*/      STL [R1+0x8], R4 ;
        /*0060*/      LDS.128 R4, [R1] ;
        /*0070*/      LDL.LU R4, [R1+0x8] ;
        /*0080*/ @!UP2 MUFU.EX2 R4, R4 ;
        /*0090*/      ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR10][R14.64], R5 ;
        /*00a0*/      MOV R4, c[0x0][0x28] ;
		Function : bar
        /*0000*/      EXIT ;
"""


@pytest.fixture(params=["sm_80", "sm_90"])
def architecture(request):
    """One that the extension has machine code for: a wheel has more than a build for tests."""
    try:
        cuda_library.code_that_runs(request.param)
    except ResourcesUnavailable as error:
        pytest.skip(str(error))
    return request.param


def test_sass_is_read():
    found = machine_code.read_sass(SASS)
    assert found["_Z3foov"] == Code(
        loads=((16, 1), (4, 1), (2, 1)),
        stores=((8, 1),),
        spill_bytes=12,
        instructions=(
            *(("LDG.128", 1), ("LDG.32", 1), ("LDG.16", 1), ("STG.64", 1), ("LDS.128", 1)),
            *(("LDL.32", 1), ("STL.64", 1), ("STL.32", 1), ("MUFU", 1), ("ATOMG", 1)),
        ),
    )
    assert found["bar"] == Code((), (), 0, ())


def test_symbols_are_read():
    symbol = "_ZN6diglot16add_forward_flatIfNS_9FlatShapeILi4ELi4EEEEEvliPKT_S5_"
    symbol += "NS_7ComputeIS3_E4typeEPS3_"
    assert machine_code.demangle(symbol) == "add_forward_flat<float, FlatShape<4, 4> >"
    assert machine_code.demangle("add_forward_flat") == "add_forward_flat"
    unnamed = "_ZN12_GLOBAL__N_111rows_kernelILi4EEEvPKfS2_Pf"  # of an unnamed namespace
    assert machine_code.demangle(unnamed) == "rows_kernel<4>"


@pytest.mark.parametrize(
    ("asked", "found"),
    [("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_90", "sm_90a"), ("sm_90a", "sm_90a")],
)
def test_architectures(asked, found, monkeypatch):
    monkeypatch.setattr(cuda_library, "library_architectures", lambda: ("sm_80", "sm_90a"))
    assert cuda_library.code_that_runs(asked) == found


def test_architectures_without_code(monkeypatch):
    monkeypatch.setattr(cuda_library, "library_architectures", lambda: ("sm_80", "sm_90a"))
    with pytest.raises(
        ResourcesUnavailable, match="machine code for sm_80, sm_90a, not for sm_100"
    ):
        cuda_library.code_that_runs("sm_100")
    with pytest.raises(ValueError, match="arch must be like 'sm_90'"):
        cuda_library.code_that_runs("90")


def test_older_tools_tell_architectures_too(monkeypatch):
    """cuobjdump 12.8 lists code for sm_90a as a file named sm_90."""
    usage = " Function _Z1av:\n  REG:8 STACK:0 SHARED:16 LOCAL:0\n"
    text = f"""
Fatbin elf code:
================
arch = sm_80
code version = [1,8]

Resource usage:
{usage}
Fatbin elf code:
================
arch = sm_90a

Resource usage:
{usage}
Fatbin ptx code:
================
arch = sm_90
"""
    monkeypatch.setattr(cuda_library, "dump", lambda *arguments: text)
    found = cuda_library._usage_in("library", -1)
    assert found == {name: [("_Z1av", 8, 0, 16)] for name in ("sm_80", "sm_90a")}


def test_an_older_cuobjdump_leaves_the_architecture_as_it_is(monkeypatch):
    """That of Triton 3.6 calls code by a ptxas of CUDA 13 code for sm_90."""
    knobs = pytest.importorskip("triton").knobs
    ptx = ".version 8.7\n.target sm_90a, debug\n.address_size 64\n"
    stages = dict.fromkeys(resources.TRITON_STAGES, "") | {"ptx": ptx, "cubin": b"ELF"}

    class Compiled:
        asm = stages
        metadata = SimpleNamespace(num_warps=4, shared=64)

    def dump(option, _):
        usage = " Function _Z3foov:\n  REG:8 STACK:0 SHARED:1024 LOCAL:0\n"
        return usage if option == "--dump-resource-usage" else f"\tcode for sm_90\n{SASS}"

    monkeypatch.setattr(knobs.runtime, "interpret", False)
    monkeypatch.setattr(resources, "dump", dump)
    kernel = resources.compile_stages(SimpleNamespace(compile=lambda target: Compiled)).resources
    assert (kernel.architecture, kernel.name, kernel.registers) == ("sm_90a", "foo", 8)
    assert (kernel.shared_bytes, kernel.threads, kernel.dynamic_shared_bytes) == (64, 128, 64)


@needs_extension
def test_unknown_kernel():
    with pytest.raises(KeyError, match="has no kernel nothing<float>"):
        cuda_kernels("sm_90", ["nothing<float>"])


@needs_extension
def test_every_cuda_kernel_is_listed(architecture):
    names = cuda_kernel_names(architecture)
    kinds = {name.partition("<")[0] for name in names}
    assert {"elementwise_flat", "elementwise_strided", "add_backward_sum"} <= kinds
    assert {"GeluForward", "GeluBackward", "Add", "Dropout"} <= {functor_of(n) for n in names}
    assert len(names) > 100


def functor_of(name: str) -> str:
    """What an elementwise kernel maps; of another kernel the name."""
    return re.match(r"(?:elementwise_\w+<)?(\w+)", name)[1]


def type_and_inputs(name: str) -> tuple[str, int]:
    """An elementwise kernel's element type, and how many inputs it has."""
    arguments = r"FlatShape<\d+, \d+>(?:, Strides<\d+, [\w ]+>)?, (.+)>$"
    types = re.search(arguments, name)[1].split(", ")
    return types[0], len(types) - 1


def without_seed(kernel: KernelResources) -> KernelResources:
    """Dropout's kernels load a seed of 8 bytes beside their arrays, where the elements' loads are.

    A flat kernel has them for whole blocks, for the last block and for the tail; one of tiny calls
    has no tail.
    """
    if functor_of(kernel.name) != "Dropout":
        return kernel
    loads = dict(kernel.loads)
    loads[8] -= 1 if "_strided<" in kernel.name else 2 if TINY in kernel.name else 3
    left = tuple((width, count) for width, count in loads.items() if count)
    return dataclasses.replace(kernel, loads=left)


def accesses_of_flat_kernel(kernel: KernelResources, element: int) -> list[str]:
    """Faults of a flat kernel's accesses: 16 bytes each, except for the head and the tail.

    A kernel for tiny calls takes one element per thread, and so in every access.
    """
    if TINY in kernel.name:
        kernel = without_seed(kernel)
        widths = {width for width, _ in (*kernel.loads, *kernel.stores)}
        return [] if widths == {element} else [f"accesses of {widths} bytes"]
    wrong = []
    kernel = without_seed(kernel)
    _, inputs = type_and_inputs(kernel.name)
    for what, found, arrays in (("load", kernel.loads, inputs), ("store", kernel.stores, 1)):
        if kernel_widest := dict(found).get(16, 0):
            others = {width: count for width, count in found if width not in (16, element)}
            if others:
                wrong.append(f"{what}s of {others}")
            if dict(found).get(element, 0) > 2 * arrays:
                wrong.append(f"{dict(found)[element]} {what}s of one element, {kernel_widest} wide")
        else:
            wrong.append(f"no 16-byte {what}")
    return wrong


def sample_of(names: tuple[str, ...]) -> list[str]:
    """Of each kernel's variants in bfloat16 the second of those whose accesses are wide."""
    of_kernel: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if "bfloat16" in name:
            kind = name.partition("<")[0], functor_of(name)
            of_kernel.setdefault(kind, []).append(name)
    wide_first = [
        sorted(of, key=lambda name: ", false," in name or "Width)0" in name)
        for of in of_kernel.values()
    ]
    return [variants[:2][-1] for variants in wide_first]


@pytest.fixture(
    params=[
        # To read one takes a third of a second, and to read all nearly a minute.
        pytest.param(sample_of, id="a sample", marks=[pytest.mark.slow, pytest.mark.compiled]),
        pytest.param(None, id="all", marks=[pytest.mark.slow, pytest.mark.ahead_of_time]),
    ]
)
def kernels(request, architecture):
    """CUDA's kernels by name, a sample of them or all."""
    names = cuda_kernel_names(architecture)
    wanted = names if request.param is None else request.param(names)
    found = cuda_kernels(architecture, request.param and wanted)
    assert set(found) == set(wanted) and len(wanted) > 30
    return found


@needs_extension
def test_flat_cuda_kernels_access_16_bytes(kernels):
    flat = {n: k for n, k in kernels.items() if "_flat<" in n}
    assert not all(TINY in name for name in flat)
    wrong = {}
    for name, kernel in flat.items():
        kind, _ = type_and_inputs(name)
        faults = accesses_of_flat_kernel(kernel, TYPES.get(kind, 1))
        if kernel.spill_bytes or kernel.stack_bytes:
            faults.append(f"{kernel.spill_bytes} bytes of local memory")
        if faults:
            wrong[name] = faults
    listed = "\n".join(f"{name}: {', '.join(faults)}" for name, faults in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(flat)} flat kernels:\n{listed}"


@needs_extension
def test_strided_cuda_kernels_access_16_bytes(kernels):
    """Of those with vectors: one access per vector, or one of an element where it is repeated."""
    strided = {n: k for n, k in kernels.items() if "_strided<" in n}
    assert len(strided) > len(kernels) // 10
    for name, kernel in strided.items():
        kernel = without_seed(kernel)
        accesses, elements = map(int, re.search(r"FlatShape<(\d+), (\d+)>", name).groups())
        kind, inputs = type_and_inputs(name)
        size = TYPES.get(kind, 1)
        loads = {size: inputs * accesses, elements * size: inputs * accesses}
        stores = {elements * size: accesses}
        found = [dict(kernel.loads), dict(kernel.stores)]
        if functor_of(name).startswith(
            "GaussianPdf"
        ):  # the compiler may double its loop and the code behind it
            assert [set(of) for of in found] == [set(loads), set(stores)], name
            assert all(
                of[k] % n == 0
                for of, n_of in zip(found, (loads, stores), strict=True)
                for k, n in n_of.items()
            ), name
        else:
            assert found == [loads, stores], name


@needs_extension
def test_kernels_of_whole_arrays_access_16_bytes(kernels):
    """Each access before the barrier, of a whole tile and of one cut short, and again behind it."""
    ops = ("global_softmax_", "standardize_")
    whole = {n: k for n, k in kernels.items() if n.startswith(ops)}
    assert whole
    for name, kernel in whole.items():
        accesses = int(re.search(r", (\d+)>", name)[1])
        arrays = 2 if "backward" in name else 1
        loads, stores = dict(kernel.loads).get(16, 0), dict(kernel.stores).get(16, 0)
        assert loads >= 2 * arrays * accesses and stores >= accesses, name
        assert not kernel.spill_bytes and not kernel.stack_bytes, name
        assert kernel.registers <= 128, name  # two blocks of 256 threads on a multiprocessor


@needs_extension
def test_kernels_of_rows_access_16_bytes(kernels):
    """As many as a thread holds, of each array, and none that is narrower; or elements alone."""
    rows = {n: k for n, k in kernels.items() if "_rows<RowShape" in n}
    assert len(rows) > len(kernels) // 10
    for name, kernel in rows.items():
        if "Walk)2" in name:  # what a launch of chunks writes are states
            continue
        # Its Width, how many accesses a thread holds, and the types.
        shape = re.search(
            r"RowShape<[^,]+, \((?:diglot::)?Width\)(\d), \d+, (\d+), [^>]+>, (.+)>$", name
        )
        width, accesses, types = shape.groups()
        loads, stores = dict(kernel.loads), dict(kernel.stores)
        arrays = 2 if "backward" in name or name.startswith("add_") else 1
        assert not kernel.spill_bytes and not kernel.stack_bytes, name
        if width != "0":  # it is not narrow
            assert loads.get(16, 0) >= arrays * int(accesses), name
            widens = "softmax" in name and "float, __" in types
            assert max(stores) == (8 if widens else 16), name
        else:
            assert max(stores) <= 8 and loads, name


@needs_extension
def test_no_cuda_kernel_spills(kernels):
    assert not {n: k.spill_bytes for n, k in kernels.items() if k.spill_bytes or k.stack_bytes}
    assert all(k.registers > 0 for k in kernels.values())


@needs_extension
def test_no_cuda_kernel_has_a_stack(architecture):
    """Spilled values lie there; reading this takes no time, unlike all the code."""
    usage = cuda_library.library_usage()[cuda_library.code_that_runs(architecture)]
    assert len(usage) > 100
    assert not {symbol: stack for symbol, _, stack, _ in usage if stack}


def test_likeness_of_a_tensor():
    base = torch.empty(64, dtype=torch.bfloat16)
    view = base[3:63].view(6, 10)[:, ::2]
    of = TensorLike.of(view)
    assert of == TensorLike("bfloat16", (6, 5), (10, 2), 3)
    again = of.tensor()
    assert (again.shape, again.stride(), again.dtype) == (view.shape, view.stride(), view.dtype)
    assert again.data_ptr() % 16 == view.data_ptr() % 16
    assert dataclasses.replace(of, shape=(0, 5)).tensor().numel() == 0
