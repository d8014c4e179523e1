"""`stream_map` and `stream_reduce` run a function over arrays in host memory, chunk by chunk.

Copies to the device, compute and copies back overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from diglot.pipeline.last_report import last
from diglot.pipeline.planner import NUM_SLOTS
from diglot.pipeline.report import PipelineReport
from diglot.pipeline.stream_call import StreamCall


def last_stream_report() -> PipelineReport | None:
    """The report of this thread's last successful `stream_map` or `stream_reduce`, or None."""
    return last.report()


def stream_map(
    fn: Callable[..., Any],
    *inputs: Any,
    out: Any = None,
    chunk_bytes: int | None = None,
    num_slots: int = NUM_SLOTS,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    progress: bool = False,
) -> Any:
    """Applies a function along dimension 0 of arrays in host memory, chunk by chunk.

    While the device computes one chunk, the next is copied to it and the one before is copied back.
    The device holds `num_slots` chunks, at any size of the arrays. docs/pipeline.md explains it.

    Args:
        fn: an op of diglot, or any callable from one chunk of each input, as tensors on a device,
            to a tensor with as many rows, or several. A row's result must not depend on other rows.
            functools.partial gives it options. It is called without gradients, on this or other
            threads, and must enqueue its work on the current stream.
        inputs: CPU tensors or NumPy arrays, memory-mapped ones too, of one length and of any row
            shapes and dtypes.
        out: where the result goes: a contiguous CPU tensor or array, or a writable map, of the
            result's shape and dtype; several for several results. By default new ones.
        chunk_bytes: the most for a chunk's largest array. By default 2 to 32 MiB, by the arrays'
            size and kind of memory, and more for several devices under Python. The output counts if
            it is known early: if `out` is given, or `fn` is an op of diglot.
        num_slots: chunks on the device at once.
        devices: indices of GPUs, or devices, that share the rows. By default the current GPU, or
            the CPU without one or where kernels are interpreted.
        backend: for ops of diglot: "cuda", "triton", "torch" or "auto". By default `use_backend`
            decides, then the variable DIGLOT_BACKEND, then "auto".
        progress: whether to show a bar with GB/s; needs `pip install "diglot[tools]"`.

    Returns:
        `out`, or a new result in ordinary memory: an array if the first input is one, otherwise a
        tensor; a tuple if `fn` returns several. It equals fn(*inputs) if `fn` treats rows
        independently, and in the same way in a chunk of any size.

    Raises:
        TypeError: an input is not a tensor or array, or is masked, nested, quantized or sparse.
        ValueError: lengths differ, or, for an op of diglot, numbers of dimensions. An array has no
            rows to cut (0-d), or a row is larger than `chunk_bytes`. `out` does not fit, overlaps
            an input, is read-only or not contiguous. A device is named twice, or a number is out of
            range.
        MemoryError: the host has no memory for a new result.
        diglot.BackendUnavailable: the requested backend cannot run there.
        StreamError: a chunk failed. The message names it, and the attribute `rows` says how many
            first rows of `out` are valid. If the device lacks memory for a chunk, diglot first
            tries once more with a quarter of the size.
        KeyboardInterrupt: after Ctrl-C, when the running chunks are done; as StreamInterrupted,
            which also has the attribute `rows`.
    """
    stream = StreamCall("stream_map", fn, inputs, chunk_bytes, num_slots, devices, backend)
    return stream.map(out, progress)


def stream_reduce(
    fn: Callable[..., Any],
    combine: Callable[[Any, Any], Any],
    *inputs: Any,
    chunk_bytes: int | None = None,
    num_slots: int = NUM_SLOTS,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    progress: bool = False,
) -> Any:
    """Reduces arrays in host memory: `fn` maps chunks to partial results, `combine` folds them.

    It folds from the left, in the order of the chunks. So the result does not depend on `num_slots`
    or `devices`; it may depend on `chunk_bytes`.

    Args:
        fn: as for `stream_map`, but returns a partial result: a tensor on the device, or several.
        combine: takes the folded result so far and the next partial result, both on the CPU, and
            returns the new folded result.
        inputs: as for `stream_map`.
        chunk_bytes: as for `stream_map`.
        num_slots: as for `stream_map`.
        devices: as for `stream_map`.
        backend: as for `stream_map`.
        progress: as for `stream_map`.

    Returns:
        The folded result: tensors on the CPU, or arrays if the first input is one.

    Raises:
        TypeError: as for `stream_map`; or `combine` returns a dtype that NumPy lacks, and the first
            input is an array.
        ValueError: as for `stream_map`; or there are no rows.
        StreamError: a chunk failed, in `fn` or in `combine`.
    """
    stream = StreamCall("stream_reduce", fn, inputs, chunk_bytes, num_slots, devices, backend)
    return stream.reduce(combine, progress)
