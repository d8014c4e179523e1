"""`diglot stream`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from diglot_cli.common import (
    check_files,
    command,
    given,
    interpret_without_gpu,
    make_console,
    op_options,
)


@command()
@click.argument("op")
@click.option(
    "--input",
    "paths",
    metavar="FILE",
    multiple=True,
    required=True,
    help="A .npy or .safetensors file; once per input.",
)
@click.option(
    "--tensor",
    "tensors",
    metavar="NAME",
    multiple=True,
    help="Tensor of a .safetensors file; once per input.",
)
@click.option("--output", metavar="FILE", required=True, help="The .npy file to write.")
@op_options("approximate", "dim", "alpha", "eps", "mean", "std", "terms")
@click.option("--backend", metavar="NAME", help="cuda, triton, torch or auto.")
@click.option(
    "--chunk-bytes", metavar="SIZE", help="Most for a chunk's largest array, such as 16MiB."
)
@click.option(
    "--num-slots",
    default=3,
    show_default=True,
    type=click.IntRange(1, 64),
    metavar="NUMBER",
    help="Chunks on a device at once.",
)
@click.option("--devices", metavar="NUMBERS", help="GPUs that share the rows, such as 0,1.")
@click.option("--report", metavar="FILE", help="Write a timeline of the run as JSON.")
@click.option("--plot", metavar="FILE", help="Draw the timeline, as .png or .svg.")
@click.option("--force", is_flag=True, help="Overwrite files.")
def stream(
    op: str,
    *,
    paths: tuple[str, ...],
    tensors: tuple[str, ...],
    output: str,
    backend: str | None,
    chunk_bytes: str | None,
    num_slots: int,
    devices: str | None,
    report: str | None,
    plot: str | None,
    force: bool,
    **of_op: Any,
) -> None:
    """Run OP, such as gelu, over arrays in files that may be larger than memory, chunk by chunk.

    The files are mapped, not read at once. While the device computes a chunk, the next one is
    copied to it and the one before is copied back. The rows of OP, along the first dimension, must
    not depend on each other. layer_norm and rms_norm are over the last dimension, without weights.
    """
    if backend in ("cuda", "triton"):  # else PyTorch's own kernels run
        interpret_without_gpu()
    import diglot
    from diglot.tools import streaming

    # Everything that can be known to be wrong is told before anything is computed.
    known = streaming.find(op)
    size = None if chunk_bytes is None else streaming.parse_bytes(chunk_bytes)
    where = None if devices is None else streaming.parse_devices(devices)
    check_files(paths, {"--output": output, "--report": report, "--plot": plot}, force)
    if Path(output).suffix.lower() != ".npy":
        raise ValueError(f"--output: {output} must end in .npy")
    inputs = streaming.open_inputs(known.inputs, paths, tensors)
    function = streaming.call(op, tuple(inputs[0].shape), given(of_op))
    shape, dtype = streaming.result_like(function, inputs)
    messages = make_console(stderr=True)
    with streaming.npy_file(output, shape, dtype, force) as out:
        try:
            diglot.stream_map(
                function,
                *inputs,
                out=out,
                chunk_bytes=size,
                num_slots=num_slots,
                devices=where,
                backend=backend,
                progress=messages.is_terminal,
            )
        except diglot.StreamError as error:
            raise ValueError(f"{error}; {output} was not written") from error
    done = diglot.last_stream_report()
    assert done is not None
    console = make_console()
    console.print(f"{done.summary()}.", markup=False, soft_wrap=True)
    for note in done.notes:
        console.print(f"{note}.", markup=False, soft_wrap=True)
    messages.print(f"wrote {output}", markup=False)
    if report is not None:
        done.save(report, force)
        messages.print(f"wrote {report}", markup=False)
    if plot is not None:
        done.plot(plot, force)
        messages.print(f"wrote {plot}", markup=False)
