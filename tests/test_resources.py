"""Compiled kernels of both languages: no spills, wide accesses, and the right one looked at."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from diglot.tools import resources
from diglot.tools.resources import (
    Call,
    KernelResources,
    Kernels,
    ResourcesUnavailable,
    TensorLike,
    cuda_kernel_names,
    cuda_kernels,
    kernels_of_calls,
)

ARCHITECTURES = [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"]
# Elements of calls to either side of the limit below which kernels are made for latency.
SMALL, LARGE = 1000, 1 << 20
FLOATING = ["float32", "float16", "bfloat16", "float64"]
OTHERS = ["int8", "uint8", "int16", "int32", "int64", "bool"]
SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
TINY = "FlatShape<1, 1> >"
TYPES = {"__half": 2, "__nv_bfloat16": 2, "short": 2, "float": 4, "int": 4, "double": 8, "long": 8}


def missing_extension():
    try:
        resources.library_path()
        resources.find_cuobjdump()
    except ResourcesUnavailable as error:
        return str(error)
    return None


needs_extension = pytest.mark.skipif(
    missing_extension() is not None, reason=str(missing_extension())
)


def like(dtype, *shape, stride=None, misalignment=0):
    stride = stride or torch.empty(shape, device="meta").stride()
    return TensorLike(dtype, shape, tuple(stride), misalignment)


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
		Function : bar
        /*0000*/      EXIT ;
"""


def test_sass_is_read():
    found = resources._read_sass(SASS)
    assert found["_Z3foov"] == {
        "load_bytes": 16,
        "store_bytes": 8,
        "loads": ((16, 1), (4, 1), (2, 1)),
        "stores": ((8, 1),),
        "spill_bytes": 12,
    }
    assert found["bar"]["load_bytes"] is None and found["bar"]["spill_bytes"] == 0


def test_symbols_are_read():
    symbol = "_ZN6diglot16add_forward_flatIfNS_9FlatShapeILi4ELi4EEEEEvliPKT_S5_"
    symbol += "NS_7ComputeIS3_E4typeEPS3_"
    assert resources.demangle(symbol) == "add_forward_flat<float, FlatShape<4, 4> >"
    assert resources.demangle("add_forward_flat") == "add_forward_flat"


@pytest.mark.parametrize(
    ("asked", "found"),
    [("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_90", "sm_90a"), ("sm_90a", "sm_90a")],
)
def test_architectures(asked, found, monkeypatch):
    monkeypatch.setattr(resources, "library_architectures", lambda: ("sm_80", "sm_90a"))
    assert resources.code_that_runs(asked) == found


def test_architectures_without_code(monkeypatch):
    monkeypatch.setattr(resources, "library_architectures", lambda: ("sm_80", "sm_90a"))
    with pytest.raises(
        ResourcesUnavailable, match="machine code for sm_80, sm_90a, not for sm_100"
    ):
        resources.code_that_runs("sm_100")
    with pytest.raises(ValueError, match="arch must be like 'sm_90'"):
        resources.code_that_runs("90")


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
    monkeypatch.setattr(resources, "_dump", lambda *arguments: text)
    found = resources._usage_in("library", -1)
    assert found == {name: [("_Z1av", "8", "0", "16")] for name in ("sm_80", "sm_90a")}


@needs_extension
def test_unknown_kernel():
    with pytest.raises(KeyError, match="has no kernel nothing<float>"):
        cuda_kernels("sm_90", ["nothing<float>"])


@needs_extension
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_cuda_kernel_is_listed(architecture):
    names = cuda_kernel_names(architecture)
    kinds = {name.partition("<")[0] for name in names}
    assert {"gelu_forward_flat", "gelu_backward_strided", "add_forward_flat"} <= kinds
    assert len(names) > 100


def accesses_of_flat_kernel(kernel: KernelResources, element: int) -> list[str]:
    """What is wrong with a flat kernel's accesses: 16 bytes each but for the head and the tail.

    A kernel for tiny calls takes one element per thread, and so in every access.
    """
    if kernel.name.endswith(TINY):
        widths = {width for width, _ in (*kernel.loads, *kernel.stores)}
        return [] if widths == {element} else [f"accesses of {widths} bytes"]
    wrong = []
    inputs = 2 if re.match(r"add_forward|gelu_backward", kernel.name) else 1
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


@needs_extension
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flat_cuda_kernels_access_16_bytes(architecture):
    flat = {n: k for n, k in cuda_kernels(architecture).items() if "_flat<" in n}
    assert {name.rpartition("Flat")[2] for name in flat} >= {"Shape<1, 1> >", "Shape<4, 4> >"}
    wrong = {}
    for name, kernel in flat.items():
        kind = name.partition("<")[2].partition(",")[0]
        faults = accesses_of_flat_kernel(kernel, TYPES.get(kind, 1))
        if kernel.spill_bytes or kernel.stack_bytes:
            faults.append(f"{kernel.spill_bytes} bytes of local memory")
        if faults:
            wrong[name] = faults
    listed = "\n".join(f"{name}: {', '.join(faults)}" for name, faults in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(flat)} flat kernels:\n{listed}"


@needs_extension
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_strided_cuda_kernels_access_16_bytes(architecture):
    """Of those with vectors: one access per vector, or one of an element where it is repeated."""
    strided = {n: k for n, k in cuda_kernels(architecture).items() if "_strided<" in n}
    assert len(strided) > 100
    for name, kernel in strided.items():
        accesses, elements = map(int, re.search(r"FlatShape<(\d+), (\d+)>", name).groups())
        size = TYPES.get(name.partition("<")[2].partition(",")[0], 1)
        inputs = 2 if re.match(r"add_forward|gelu_backward", name) else 1
        loads = {size: inputs * accesses, elements * size: inputs * accesses}
        assert (dict(kernel.loads), dict(kernel.stores)) == (loads, {elements * size: accesses}), (
            name
        )


@needs_extension
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_cuda_kernel_spills(architecture):
    kernels = cuda_kernels(architecture)
    assert set(kernels) == set(cuda_kernel_names(architecture))
    assert not {n: k.spill_bytes for n, k in kernels.items() if k.spill_bytes or k.stack_bytes}
    assert all(k.registers > 0 for k in kernels.values())


@needs_extension
def test_launches_are_recorded():
    """Nothing is launched, on no device, and a kernel's name is that of its symbol."""
    from diglot import _C

    x, out = torch.empty(1 << 20, 3), torch.zeros(1 << 20, 3)
    (flat,) = _C.record(lambda: _C.gelu_forward(x, "none", out))
    (strided,) = _C.record(lambda: _C.gelu_forward(x[:, ::2], "none", out[:, ::2]))
    assert _C.last_variant() == "strided, 32-bit offsets" and not out.any()
    names = [resources.short_name(kernel) for kernel, *_ in (flat, strided)]
    assert names == [
        "gelu_forward_flat<float, (Approximate)0, FlatShape<4, 4> >",
        "gelu_forward_strided<float, (Approximate)0, FlatShape<4, 1>, unsigned int>",
    ]
    assert set(names) <= set(cuda_kernel_names())
    assert flat[1:] == ((3 * 2**20 // (128 * 16), 1, 1), (128, 1, 1))
    meta = torch.empty(5, 1, device="meta")
    grad, row = torch.empty(5, 2**20, device="meta"), torch.empty(300, 5, device="meta")
    split = _C.record(lambda: _C.add_backward(grad, 1, row, meta))
    assert [(len(grid), grid[1]) for _, grid, _ in split] == [(3, 300), (3, 1)]


@needs_extension
def test_recording_ends():
    """After an error too; a recording inside another keeps its launches, and so does a thread."""
    from diglot import _C

    def launch():
        _C.gelu_forward(torch.empty(3), "none", torch.empty(3))

    def nest():
        launch()
        with ThreadPoolExecutor(1) as pool:
            assert len(pool.submit(_C.record, launch).result()) == 1
        assert len(_C.record(launch)) == 1
        with pytest.raises(ZeroDivisionError):
            _C.record(lambda: 1 / 0)
        launch()

    assert len(_C.record(nest)) == 2
    assert _C.record(lambda: None) == []
    with pytest.raises(ValueError, match="approximate must be"):
        _C.record(lambda: _C.gelu_forward(torch.empty(3), "erf", torch.empty(3)))
    with pytest.raises(TypeError):
        _C.record(3)


def calls_of(dtype: str, elements: int = LARGE) -> dict[str, Call]:
    """A call for every kernel of a dtype, by what is asked of its accesses."""
    flat = like(dtype, elements)
    misaligned = like(dtype, elements, misalignment=1)
    strided = like(dtype, 1024, 256, stride=(512, 2))
    rows = like(dtype, 1024, 256, stride=(512, 1))
    calls = {
        "add flat": Call("add", (flat, flat), {}),
        "add misaligned": Call("add", (misaligned, misaligned), {}),
        "add number flat": Call("add", (flat, 2), {}),
        "add strided": Call("add", (strided, strided), {}),
        "add broadcast": Call("add", (like(dtype, 1024, 256), like(dtype, 256)), {}),
        "add rows": Call("add", (rows, like(dtype, 1024, 1)), {}),
    }
    if dtype not in FLOATING:
        return calls
    calls |= {
        "add backward flat": Call("add", (flat, flat), {"alpha": 2}, True),
        "add backward sum": Call("add", (like(dtype, 4096, 64), like(dtype, 64)), {}, True),
        "add backward row": Call("add", (like(dtype, 64, 65536), like(dtype, 64, 1)), {}, True),
    }
    for form, backward in itertools.product(("none", "tanh"), (False, True)):
        name = f"gelu {form} {'backward' if backward else 'forward'}"
        options = {"approximate": form}
        calls[f"{name} flat"] = Call("gelu", (flat,), options, backward)
        calls[f"{name} strided"] = Call("gelu", (strided,), options, backward)
        calls[f"{name} rows"] = Call("gelu", (rows,), options, backward)
    return calls


# By language and elements of a flat call: which calls the tests that are not slow look at.
WANTED = {
    "cuda": dict.fromkeys((SMALL, 1 << 22), "add (flat|misaligned)|tanh backward flat")
    | {LARGE: ""},
    "triton": {SMALL: "add (flat|strided)|add backward|none forward", LARGE: "flat"},
}


@functools.cache
def looked_at(language: str) -> dict[int, dict[str, Kernels]]:
    """By elements and name of the call: all in bfloat16 for sm_90, all of one process."""
    calls = [
        (elements, name, call)
        for elements, wanted in WANTED[language].items()
        for name, call in calls_of("bfloat16", elements).items()
        if re.search(wanted, name)
    ]
    answers = kernels_of_calls([call for *_, call in calls], "sm_90", [language])
    found: dict[int, dict[str, Kernels]] = {elements: {} for elements in WANTED[language]}
    for (elements, name, _), answer in zip(calls, answers, strict=True):
        found[elements][name] = answer[language]
    return found


def check(found, elements, language):
    """Asserts what holds for every kernel; `elements`: of the flat calls."""
    for name, answer in found.items():
        assert answer.reason is None, f"{name}: {answer.reason}"
        assert answer.kernels, name
        for kernel in answer.kernels:
            assert kernel.registers > 0 and kernel.load_bytes and kernel.store_bytes
            assert kernel.spill_bytes == 0, f"{name}: {kernel}"
            wide = "flat|rows|add broadcast" if elements == LARGE else "rows|add broadcast"
            if language == "triton" and re.search(wide, name):
                assert (kernel.load_bytes, kernel.store_bytes) == (16, 16), f"{name}: {kernel}"


@needs_extension
@pytest.mark.parametrize(
    ("elements", "accesses"), [(SMALL, "1, 1"), (LARGE, "1, 8"), (1 << 22, "2, 8")]
)
def test_the_cuda_kernel_of_a_call(elements, accesses):
    found = looked_at("cuda")[elements]
    check(found, elements, "cuda")
    bf16, form = "__nv_bfloat16", "(Approximate)1"
    flat, strided = f"FlatShape<{accesses}> >", "FlatShape<4, 1>, unsigned int>"
    # The output is aligned, so that no head aligns all three; one element needs no alignment.
    misaligned = f"flat<{bf16}, {flat}" if elements == SMALL else f"strided<{bf16}, {strided}"
    expected = {
        "add flat": [f"add_forward_flat<{bf16}, {flat}"],
        "add misaligned": [f"add_forward_{misaligned}"],
        "add number flat": [f"add_number_flat<{bf16}, {flat}"],
        "add broadcast": [f"add_forward_strided<{bf16}, FlatShape<2, 8>, unsigned int>"],
        "gelu none forward rows": [
            f"gelu_forward_strided<{bf16}, (Approximate)0, FlatShape<2, 8>, unsigned int>"
        ],
        "add backward row": [
            f"add_backward_sum<{bf16}, unsigned int, 1, 8>",
            "add_backward_sum<float, unsigned int, 4, 1>",
        ],
        "gelu tanh backward flat": [f"gelu_backward_flat<{bf16}, {form}, {flat}"],
        "gelu tanh forward strided": [f"gelu_forward_strided<{bf16}, {form}, {strided}"],
    }
    names = {call: [kernel.name for kernel in of.kernels] for call, of in found.items()}
    for call in names.keys() & expected.keys():
        assert names[call] == expected[call]
    if elements == LARGE:
        assert names.keys() > expected.keys()
        assert names["add backward sum"][0] == f"add_backward_sum<{bf16}, unsigned int, 8, 1>"
    assert found["add flat"].kernels[0].architecture == "sm_90a"


@pytest.mark.parametrize("elements", [SMALL, LARGE])
def test_triton_kernels_of_one_dtype(elements):
    pytest.importorskip("triton")
    found = looked_at("triton")[elements]
    check(found, elements, "triton")
    for call, of in found.items():
        for kernel in of.kernels:
            assert kernel.name.startswith(call.partition(" ")[0])
            assert kernel.architecture.startswith("sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtypes", [FLOATING[:2], FLOATING[2:] + OTHERS], ids=" ".join)
def test_every_triton_kernel_compiles(dtypes, architecture):
    """Few processes, each for many kernels: to start one takes as long as to compile five."""
    pytest.importorskip("triton")
    calls = {f"{d} {n}": c for d in dtypes for n, c in calls_of(d).items()}
    answers = kernels_of_calls(list(calls.values()), architecture, ["triton"])
    found = {n: answer["triton"] for n, answer in zip(calls, answers, strict=True)}
    check(found, LARGE, "triton")


def test_failures_are_reasons():
    """A call that cannot be made tells why; the others are answered."""
    pytest.importorskip("triton")
    bad = Call("add", (like("float32", 3), like("float32", 4)), {})
    good = Call("add", (like("float32", 2, 64), like("float32", 64)), {})
    first, second = kernels_of_calls([bad, good], "sm_90", ["triton"])
    assert "do not broadcast" in first["triton"].reason and not first["triton"].kernels
    assert second["triton"].reason is None and second["triton"].kernels


@pytest.mark.slow
def test_architectures_that_no_compiler_knows():
    """LLVM says so on standard output, and where the answers are read only answers may be."""
    pytest.importorskip("triton")
    (answer,) = kernels_of_calls([Call("gelu", (like("float32", 3),), {})], "sm_999")
    assert "not for sm_999" in answer["cuda"].reason or missing_extension()
    assert answer["triton"].reason and not answer["triton"].kernels


def test_likeness_of_a_tensor():
    base = torch.empty(64, dtype=torch.bfloat16)
    view = base[3:63].view(6, 10)[:, ::2]
    of = TensorLike.of(view)
    assert of == TensorLike("bfloat16", (6, 5), (10, 2), 3)
    again = of.tensor()
    assert (again.shape, again.stride(), again.dtype) == (view.shape, view.stride(), view.dtype)
    assert again.data_ptr() % 16 == view.data_ptr() % 16
    assert dataclasses.replace(of, shape=(0, 5)).tensor().numel() == 0
