"""`stream_map` and `stream_reduce`: a function over arrays in host memory, chunk by chunk, with
copies to the device, compute and copies back at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from diglot.pipeline.planner import NUM_SLOTS
from diglot.pipeline.report import PipelineReport
from diglot.pipeline.stream_call import StreamCall, last


def last_stream_report() -> PipelineReport | None:
    """The report of this thread's last successful `stream_map` or `stream_reduce`; or None."""
    return last.report


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

    While one chunk is computed, the next is copied to the device and the one before is copied back.
    The device holds `num_slots` chunks, whatever the arrays' size.

    Args:
        fn: an op of diglot, or any callable that takes a chunk of each input, as tensors on a
            device, and returns a tensor with as many rows, or several; a row's result must not
            depend on other rows. It is called on this thread or others, without gradients, and
            enqueues its work on the current stream. functools.partial gives it options.
        inputs: CPU tensors or NumPy arrays, also memory-mapped ones, of one length and any row
            shapes and dtypes.
        out: where the result goes: a contiguous CPU tensor or array, or a writable map, of the
            result's shape and dtype; several of them for several results. By default new ones.
        chunk_bytes: of a chunk's largest array, at most; by default 2 to 32 MiB, by the arrays'
            size and where they lie, more for several devices that Python drives. The output counts
            where it is known before: `out` is given, or `fn` is an op of diglot.
        num_slots: chunks on the device at once.
        devices: indices of GPUs, or devices, that share the rows; by default the current GPU, or
            the CPU if there is none or kernels are interpreted.
        backend: for ops of diglot: "cuda", "triton", "torch" or "auto"; by default what
            `use_backend`, the variable DIGLOT_BACKEND or "auto" say.
        progress: whether to show a bar, with GB/s; takes `pip install "diglot[tools]"`.

    Returns:
        `out`, or the result: an array if the first input is one, otherwise a tensor, in ordinary
        memory; a tuple of them if `fn` returns several. It equals fn(*inputs) for every `fn` whose
        rows are independent and that computes a row the same way in a chunk of any size.

    Raises:
        TypeError: an input is neither tensor nor array, or a masked, nested, quantized or sparse
            one.
        ValueError: lengths differ, or, of an op of diglot, numbers of dimensions; an array has no
            rows to cut (0-d), a row is larger than `chunk_bytes`, `out` does not fit, overlaps an
            input, cannot be written or is not contiguous, a device is named twice, a number is out
            of range.
        diglot.BackendUnavailable: the backend asked for cannot run there.
        StreamError: a chunk failed. The message names it; the attribute `rows` says how many first
            rows of `out` are valid. A chunk that the device has no memory for is tried again, once,
            a quarter as large.
        KeyboardInterrupt: on Ctrl-C, once the chunks that are under way are done; as
            StreamInterrupted, which has the attribute `rows`, too.
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
    """Reduces arrays in host memory: `fn` maps chunks to partial results, `combine` folds those.

    Partial results are folded from the left in the chunks' order, so that the result does not
    depend on `num_slots` or `devices`; it may depend on `chunk_bytes`.

    Args:
        fn: as for `stream_map`, but returns a partial result: a tensor on the device, or several.
        combine: from what was folded so far and the next partial result, both as `fn` returns
            them but on the CPU, to the same.
        inputs: as for `stream_map`.
        chunk_bytes: as for `stream_map`.
        num_slots: as for `stream_map`.
        devices: as for `stream_map`.
        backend: as for `stream_map`.
        progress: as for `stream_map`.

    Returns:
        What was folded: tensors on the CPU; arrays if the first input is one.

    Raises:
        TypeError: as for `stream_map`; or `combine` returns a dtype that NumPy lacks, and the first
            input is an array.
        ValueError: as for `stream_map`; or there are no rows.
        StreamError: a chunk failed, in `fn` or in `combine`.
    """
    stream = StreamCall("stream_reduce", fn, inputs, chunk_bytes, num_slots, devices, backend)
    return stream.reduce(combine, progress)
