"""The kernels that a call would launch, made out without a GPU, in both languages."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from backends import needs_extension, why_no_code

import diglot
from diglot.backends.plans import Device, plan_runs
from diglot.backends.registry import load_extension
from diglot.tools import machine_code
from diglot.tools.cuda_library import cuda_kernel_names
from diglot.tools.resources import LANGUAGES, Call, TensorLike, kernels_of_calls

# Elements of calls to either side of the limits between which kernels are made for latency and for
# bandwidth.
SMALL, LARGE, LARGEST = 1000, 1 << 20, 1 << 23
FLOATING = ["float32", "float16", "bfloat16", "float64"]
OTHERS = ["int8", "uint8", "int16", "int32", "int64", "bool"]

NAMES = [
    "elementwise_flat<GeluForward<float, (Approximate)0>, FlatShape<2, 4>, float, float>",
    "elementwise_strided<GeluForward<float, (Approximate)0>, FlatShape<4, 1>, "
    "Strides<2, unsigned int>, float, float>",
]
HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
# Languages whose code can be read here.
READABLE = ["cuda"] * (why_no_code() is None) + ["triton"] * HAS_TRITON


H200 = (90, 132, 228 << 10, True)  # architecture, SMs, shared memory of each, clusters
A100 = (80, 108, 164 << 10, False)


@needs_extension
def test_launches_are_planned():
    """Nothing is launched, on no device, and a kernel's name is that of its symbol."""
    _C, _ = load_extension()

    x, out = torch.empty(1 << 20, 3), torch.zeros(1 << 20, 3)
    variant, (flat,), scratch, _ = _C.plan("gelu_forward", H200, x, "none", out)
    assert variant == "flat, 8 elements per thread" and scratch is None
    variant, (strided,), *_ = _C.plan("gelu_forward", H200, x[:, ::2], "none", out[:, ::2])
    assert variant == "strided, 32-bit offsets" and not out.any()
    names = [machine_code.short_name(kernel) for kernel, *_ in (flat, strided)]
    assert names == NAMES
    assert set(names) <= set(cuda_kernel_names())
    assert flat[1:-1] == ((3 * 2**20 // (128 * 8), 1, 1), (128, 1, 1), 0, 1, ())
    meta = torch.empty(5, 1, device="meta")
    grad = torch.empty(5, 2**20, device="meta")
    _, split, scratch, _ = _C.plan("add_backward", H200, grad, 1, meta)
    slices = split[0][1][1]
    assert [grid for _, grid, *_ in split] == [(5, slices, 1), (1, 1, 1)] and slices > 1
    assert scratch == (5 * slices * 4, 0, "call")


@needs_extension
def test_launches_are_planned_for_a_device():
    """What a planner asks of its device is answered for the one that is named."""
    _C, _ = load_extension()

    x = torch.empty(4, 65536, device="meta")
    of_h200, of_a100 = (_C.plan("softmax_forward", device, x, 1, x) for device in (H200, A100))
    _, ((on_h200, *_, h200_shared, h200_cluster, _, _),), *_ = of_h200
    _, ((on_a100, *_, a100_shared, a100_cluster, _, _),), *_ = of_a100
    assert (h200_shared, h200_cluster) == (0, 16) and on_h200 != on_a100
    # A block has eight tiles of 32 KiB, and as many in shared memory as there is room for.
    assert (a100_shared, a100_cluster) == (5 * 256 * 8 * 16, 1)


@needs_extension
def test_calls_that_cannot_be_planned():
    _C, _ = load_extension()

    x = torch.empty(3)
    with pytest.raises(ValueError, match="approximate must be"):
        _C.plan("gelu_forward", H200, x, "erf", x)
    with pytest.raises(ValueError, match="no launcher"):
        _C.plan("made_up", H200, x)
    with pytest.raises(TypeError):
        _C.plan("gelu_forward", H200, x)
    with pytest.raises(TypeError):
        _C.plan("gelu_forward", 3, x, "none", x)


def test_runs_are_planned_by_thread():
    """A scope inside another keeps its runs, and so does a thread; after an error a scope ends."""
    x = torch.ones(3)

    def call():
        diglot.gelu(x, backend="triton")

    def plan_alone():
        with plan_runs(Device(*H200)) as runs:
            call()
        return len(runs)

    with plan_runs(Device(*H200)) as runs:
        call()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(plan_alone).result() == 1
        assert plan_alone() == 1
        with pytest.raises(ZeroDivisionError), plan_runs():
            _ = 1 / 0
        call()
    assert len(runs) == 2 and runs[0].launcher == "gelu_forward"
    assert torch.equal(diglot.gelu(x, backend="torch"), torch.nn.functional.gelu(x))


def like(dtype, *shape, stride=None, misalignment=0):
    stride = stride or torch.empty(shape, device="meta").stride()
    return TensorLike(dtype, shape, tuple(stride), misalignment)


def calls_of(dtype: str, elements: int = LARGE) -> dict[str, Call]:
    """A call for every kernel of a dtype, by the accesses that it must have."""
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


def calls_of_rows(dtype: str) -> dict[str, Call]:
    """Likewise for the kernels of rows: of every length, in every direction."""
    calls = {}
    for op, backward in itertools.product(("softmax", "log_softmax"), (False, True)):
        name = f"{op} {'backward' if backward else 'forward'}"
        for n in (64, 1024, 4096, 16384):
            calls[f"{name} rows of {n}"] = Call(op, (like(dtype, 64, n),), {}, backward)
        for n in (21, 700, 8192):
            calls[f"{name} {n} columns"] = Call(op, (like(dtype, n, 512),), {"dim": 0}, backward)
        calls[f"{name} odd row"] = Call(op, (like(dtype, 3, 999),), {}, backward)
        calls[f"{name} long row"] = Call(op, (like(dtype, 2, 65536),), {}, backward)
    return calls


# By elements of a flat call: the names of the calls that are looked at. The tests that are not slow
# look at few, by one process: it takes seconds to start, and each kernel most of one.
FEW = {SMALL: "add flat", LARGE: "add (flat|broadcast)|tanh backward flat"}
MANY_OF_CUDA = {
    SMALL: "add (flat|misaligned)|tanh backward flat",
    LARGE: "",
    LARGEST: "add (flat|misaligned)|tanh backward flat",
}


IMPOSSIBLE = Call("add", (like("float32", 3), like("float32", 4)), {})


def look_at(wanted: dict[int, str], languages):
    """By language, elements and name of the call: all in bfloat16 for sm_90, all of one process.

    And by language what becomes of a call that cannot be made, asked about with them.
    """
    calls = {
        (elements, name): call
        for elements, names in wanted.items()
        for name, call in (calls_of("bfloat16", elements) | calls_of_rows("bfloat16")).items()
        if re.search(names, name)
    }
    *answers, impossible = kernels_of_calls([*calls.values(), IMPOSSIBLE], "sm_90", languages)
    found = {language: {elements: {} for elements in wanted} for language in languages}
    for (elements, name), answer in zip(calls, answers, strict=True):
        for language in languages:
            found[language][elements][name] = answer[language]
    return found, impossible


@functools.cache
def look_at_many_of_cuda():
    found, _ = look_at(MANY_OF_CUDA, ["cuda"])
    return found["cuda"]


def spilled(language, name, architecture):
    """Bytes that a kernel may spill: none. The exception is softmax's columns that Triton's
    programs share, of 16 bits, on sm_80. Three of these programs run on a multiprocessor; with two,
    which spill nothing, an H200, where three spill nothing either, is a seventh slower.
    """
    is_known = language == "triton" and architecture == "sm_80"
    return 24 if is_known and re.search(r"softmax forward \d{3,} columns", name) else 0


def op_of(kernel: str) -> str:
    """The op of add, gelu, softmax and log_softmax whose kernel has this name."""
    functor = re.match(r"elementwise_\w+<(Add|Scale|Gelu)", kernel)
    if functor is not None:
        return "gelu" if functor[1] == "Gelu" else "add"
    return re.match(r"add|gelu|softmax|log_softmax", kernel)[0]


def check(found, elements, language, architecture="sm_90"):
    """Asserts what holds for every kernel; `elements`: of the flat calls."""
    for name, answer in found.items():
        assert answer.reason is None, f"{name}: {answer.reason}"
        assert answer.kernels, name
        for kernel in answer.kernels:
            assert op_of(kernel.name) == name.split()[0]
            assert kernel.architecture.startswith(architecture)
            assert kernel.registers > 0 and kernel.load_bytes and kernel.store_bytes
            most = spilled(language, name, architecture)
            assert kernel.spill_bytes <= most, f"{name}: {kernel}"
            wide = "flat|rows|add broadcast" if elements == LARGE else "rows|add broadcast"
            if language == "triton" and re.search(wide, name):
                assert (kernel.load_bytes, kernel.store_bytes) == (16, 16), f"{name}: {kernel}"


def check_names(found, elements):
    """Asserts which of CUDA's kernels the calls launch; returns whether every kind was there."""
    bf16, form = "__nv_bfloat16", "(Approximate)1"
    accesses = {SMALL: "1, 1", LARGE: "1, 8", LARGEST: "2, 8"}[elements]

    def flat(functor, inputs, shape=accesses):
        types = ", ".join([bf16] * (1 + inputs))
        return f"elementwise_flat<{functor}, FlatShape<{shape}>, {types}>"

    def strided(functor, inputs, shape):
        where = f"Strides<{1 + inputs}, unsigned int>"
        return (
            flat(functor, inputs, shape)
            .replace("flat", "strided")
            .replace(f"<{shape}>", f"<{shape}>, {where}")
        )

    add, gelu = f"Add<{bf16}>", f"GeluForward<{bf16}, "
    # The output is aligned, so that no head aligns all three; one element needs no alignment.
    misaligned = flat(add, 2) if elements == SMALL else strided(add, 2, "4, 1")
    expected = {
        "add flat": [flat(add, 2)],
        "add misaligned": [misaligned],
        "add number flat": [flat(add, 1)],
        "add broadcast": [strided(add, 2, "2, 8")],
        "gelu none forward rows": [strided(f"{gelu}(Approximate)0>", 1, "2, 8")],
        "add backward row": [
            f"add_backward_sum<{bf16}, unsigned int, 1, 8>",
            "add_backward_sum<float, unsigned int, 4, 1>",
        ],
        "add backward sum": [
            f"add_backward_sum<{bf16}, unsigned int, 8, 1>",
            "add_backward_sum<float, unsigned int, 4, 1>",
        ],
        "gelu tanh backward flat": [flat(f"GeluBackward<{bf16}, {form}>", 2)],
        "gelu tanh forward strided": [strided(f"{gelu}{form}>", 1, "4, 1")],
    }
    names = {call: [kernel.name for kernel in of.kernels] for call, of in found.items()}
    seen = names.keys() & expected.keys()
    for call in seen:
        assert names[call] == expected[call]
    assert {kernel.architecture for of in found.values() for kernel in of.kernels} == {"sm_90a"}
    return seen == expected.keys()


@pytest.mark.slow
@pytest.mark.skipif(not READABLE, reason="neither CUDA's code nor Triton's can be read here")
def test_kernels_of_few_calls():
    """One test, since one process answers. A call that cannot be made tells why it cannot."""
    found, impossible = look_at(FEW, LANGUAGES)
    for language in READABLE:
        for elements in FEW:
            check(found[language][elements], elements, language)
            if language == "cuda":
                check_names(found[language][elements], elements)
        answer = impossible[language]
        assert "do not broadcast" in answer.reason and not answer.kernels


@needs_extension
@pytest.mark.slow
@pytest.mark.parametrize("elements", MANY_OF_CUDA)
def test_the_cuda_kernel_of_a_call(elements):
    found = look_at_many_of_cuda()[elements]
    check(found, elements, "cuda")
    assert check_names(found, elements) == (elements == LARGE)


@needs_triton
@pytest.mark.slow
def test_triton_kernels_of_small_calls():
    found, _ = look_at({SMALL: "add (flat|strided)|add backward|none forward"}, ["triton"])
    check(found["triton"][SMALL], SMALL, "triton")


HALVES = (FLOATING[:2] + OTHERS[:3], FLOATING[2:] + OTHERS[3:])


@pytest.mark.ahead_of_time
@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "step", "dtypes"),
    [
        pytest.param("sm_90", 29, FLOATING + OTHERS, marks=pytest.mark.compiled),
        *((architecture, 1, half) for architecture in ("sm_90", "sm_80") for half in HALVES),
    ],
    ids=str,
)
def test_triton_kernels_compile(architecture, step, dtypes):
    """Of a sample each type has other calls. One process looks at many kernels: to start one takes
    as long as to compile five.
    """
    asked = {
        (dtype, name): call
        for dtype in dtypes
        for calls in (calls_of(dtype), calls_of_rows(dtype) if dtype in FLOATING else {})
        for name, call in list(calls.items())[3 * (FLOATING + OTHERS).index(dtype) % step :: step]
    }
    answers = kernels_of_calls(list(asked.values()), architecture, ["triton"])
    for dtype in dtypes:
        found = {n: a["triton"] for (d, n), a in zip(asked, answers, strict=True) if d == dtype}
        check(found, LARGE, "triton", architecture)


@pytest.mark.slow
def test_architectures_that_no_compiler_knows():
    """LLVM says so on standard output, and where the answers are read only answers may be."""
    pytest.importorskip("triton")
    (answer,) = kernels_of_calls([Call("gelu", (like("float32", 3),), {})], "sm_999")
    assert "not for sm_999" in answer["cuda"].reason or why_no_code()
    assert answer["triton"].reason and not answer["triton"].kernels
