"""What stream_map refuses before it starts."""

from __future__ import annotations

import functools

import pytest
import torch
from backends import HAS_CUDA

import diglot
from diglot import stream_map

np = pytest.importorskip("numpy")

X = torch.arange(120.0).reshape(40, 3)


class Refused:
    """A function that must not be called."""

    def __call__(self, *chunks):
        raise AssertionError("work has started")


NO = Refused()
MEMORY = torch.zeros(80, 3)
BOTH = torch.zeros(40, 6)

# The function, how it is called, and the message.
REFUSED = {
    "no function": (TypeError, "fn must be callable, not a int", (3, X), {}),
    "no input": (TypeError, "at least one input", (NO,), {}),
    "a list": (
        TypeError,
        "input 0 must be a CPU tensor or a NumPy array, not a list",
        (NO, [1.0]),
        {},
    ),
    "other lengths": (
        ValueError,
        "same number of rows; input 0 has 40, and input 2 has 39",
        (NO, X, X, X[1:]),
        {},
    ),
    "a number": (ValueError, "input 1 has no dimension 0", (NO, X, torch.tensor(3.0)), {}),
    "an array's number": (ValueError, "input 0 has no dimension 0", (NO, np.array(3.0)), {}),
    "strings": (TypeError, "input 0 has a dtype that tensors lack", (NO, np.array(["a"])), {}),
    "backwards": (ValueError, "input 0 has a negative stride", (NO, X.numpy()[::-1]), {}),
    "sparse": (TypeError, "input 0 must be dense", (NO, X.to_sparse()), {}),
    "meta": (ValueError, "input 0 must be in host memory, not on meta", (NO, X.to("meta")), {}),
    "gradient": (ValueError, "input 0 requires grad", (NO, X.clone().requires_grad_()), {}),
    "gradient of out": (
        ValueError,
        "out requires grad",
        (NO, X),
        {"out": torch.zeros(40, 3).requires_grad_()},
    ),
    "a long row": (
        ValueError,
        "a row has 12 bytes, and a chunk takes 11: rows are not cut",
        (NO, X),
        {"chunk_bytes": 11},
    ),
    "a long row of out": (
        ValueError,
        "a row has 24 bytes, and a chunk takes 12",
        (NO, X),
        {"chunk_bytes": 12, "out": torch.zeros(40, 6)},
    ),
    "no chunk": (ValueError, "chunk_bytes must be positive", (NO, X), {"chunk_bytes": 0}),
    "no slots": (ValueError, "num_slots must be at least 1, not 0", (NO, X), {"num_slots": 0}),
    "half a slot": (TypeError, "num_slots must be an int, not 2.5", (NO, X), {"num_slots": 2.5}),
    "a true slot": (TypeError, "num_slots must be an int, not True", (NO, X), {"num_slots": True}),
    "a text": (TypeError, "chunk_bytes must be an int, not '9'", (NO, X), {"chunk_bytes": "9"}),
    "a backend": (ValueError, "backend must be one of", (NO, X), {"backend": "opencl"}),
    "no devices": (ValueError, "devices must name at least one", (NO, X), {"devices": []}),
    "twice": (ValueError, "a device is named twice", (NO, X), {"devices": ["cpu", "cpu"]}),
    "no such GPU": (ValueError, "there is no cuda:99", (NO, X), {"devices": [99]}),
    "below zero": (ValueError, "-1 is no device", (NO, X), {"devices": [-1]}),
    "no name": (ValueError, "'banana' is no device", (NO, X), {"devices": ["banana"]}),
    "no list": (TypeError, "devices must be a list of devices, not 1.5", (NO, X), {"devices": 1.5}),
    "big-endian": (
        ValueError,
        "input 0 cannot be used: .* byte order",
        (NO, X.numpy().astype(">f4")),
        {},
    ),
    "parts of elements": (
        ValueError,
        "input 0 cannot be used: .* strides",
        (NO, np.zeros(4, [("a", "f4"), ("b", "i1")])["a"]),
        {},
    ),
    "masked": (
        TypeError,
        "input 0 is a masked array, and its mask would be lost",
        (NO, np.ma.masked_array(X.numpy(), X.numpy() > 3)),
        {},
    ),
    "of other ranks": (
        ValueError,
        r"inputs of add must have the same number of dimensions: with shapes \(3, 3\) and \(3,\)",
        (diglot.add, X[:3], X[:3, 0].contiguous()),
        {},
    ),
    "half a device": (ValueError, "1.5 is no device", (NO, X), {"devices": [1.5]}),
    "on meta": (ValueError, "devices are GPUs, or the CPU, not meta", (NO, X), {"devices": "meta"}),
    "out's length": (
        ValueError,
        "out must have a row for each of the inputs' 40, not 39",
        (NO, X),
        {"out": torch.zeros(39, 3)},
    ),
    "out in columns": (
        ValueError,
        "out must be contiguous",
        (NO, X),
        {"out": torch.zeros(3, 40).T},
    ),
    "out apart": (ValueError, "out must be contiguous", (NO, X), {"out": MEMORY[::2]}),
    "out on itself": (
        ValueError,
        "out must be contiguous",
        (NO, X),
        {"out": torch.zeros(3).expand(40, 3)},
    ),
    "out conjugated": (
        ValueError,
        "out must be contiguous",
        (NO, X),
        {"out": torch.zeros(40, 3, dtype=torch.complex64).conj()},
    ),
    "in place": (ValueError, "out shares memory with input 0", (NO, X), {"out": X}),
    "beside": (
        ValueError,
        "out shares memory with input 1",
        (NO, X, MEMORY[:40]),
        {"out": MEMORY[39:79]},
    ),
    "between": (
        ValueError,
        "out shares memory",
        (NO, BOTH.as_strided((40, 3), (6, 1))),
        {"out": BOTH},
    ),
    "of one array": (
        ValueError,
        "out shares memory with input 0",
        (NO, MEMORY.numpy()[:40]),
        {"out": MEMORY[:40]},
    ),
    "outs": (
        ValueError,
        "out 1 shares memory with out 0",
        (NO, X),
        {"out": (MEMORY[:40], MEMORY[20:60])},
    ),
    "a list as out": (TypeError, "out must be a CPU tensor", (NO, X), {"out": ["a"]}),
    # By the ops themselves.
    "std": (ValueError, "std must be", (functools.partial(diglot.gaussian_pdf, std=0.0), X), {}),
    "terms": (
        ValueError,
        "terms must be",
        (functools.partial(diglot.gaussian_pdf, terms=0), X),
        {},
    ),
    "approximate": (
        ValueError,
        "approximate",
        (functools.partial(diglot.gelu, approximate="x"), X),
        {},
    ),
    "out of an op": (
        ValueError,
        "out must have the result's shape and dtype",
        (diglot.gelu, X),
        {"out": torch.zeros(40, 3, dtype=torch.float64)},
    ),
    "outs of an op": (
        ValueError,
        "fn returns 1 tensors, and out has 2",
        (diglot.gelu, X),
        {"out": (MEMORY[:40], MEMORY[40:])},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_work_starts(monkeypatch, name):
    kind, message, arguments, options = REFUSED[name]

    def run(*_):
        raise AssertionError("work has started")

    monkeypatch.setattr("diglot.pipeline.stream_call.Run", run)
    is_of_op = callable(arguments[0]) and arguments[0] is not NO
    for backend in ["torch", "triton", *["cuda"] * HAS_CUDA] if is_of_op else [None]:
        with pytest.raises(kind, match=message):
            stream_map(*arguments, **{"backend": backend, **options})


def test_a_backend_that_cannot_run(refused_cuda):
    with pytest.raises(diglot.BackendUnavailable, match=refused_cuda):
        stream_map(diglot.gelu, X, backend="cuda")


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_rows_of_numbers():
    nested = torch.nested.nested_tensor([X, X])
    quantized = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    for tensor in (nested, quantized):
        with pytest.raises(TypeError, match="input 0 must have rows of numbers, and is nested or"):
            stream_map(NO, tensor)
