"""`diglot compare`."""

from __future__ import annotations

from typing import Any

import click
from rich import box
from rich.markup import escape
from rich.table import Table

from diglot_cli.common import (
    check_files,
    find_device,
    interpret_without_gpu,
    make_console,
    one_line_errors,
    op_options,
    parse_options,
    show_progress,
)


@click.command()
@click.argument("op")
@click.option("--input", "path", metavar="FILE", help="A .npy, .safetensors or .pt file.")
@click.option(
    "--tensor",
    "tensors",
    metavar="NAME",
    multiple=True,
    help="Tensor of the file; once per input. Default: what the file's metadata says.",
)
@click.option(
    "--shape", metavar="SIZES", help="Random normal data of this shape, such as 8192x8192."
)
@click.option("--dtype", metavar="DTYPE", help="Convert to this dtype, such as bf16 or float32.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**64 - 1),
    metavar="NUMBER",
    help="Seed of random data.",
)
@op_options
@click.option("--backward", is_flag=True, help="Compare gradients instead of the output.")
@click.option(
    "--device",
    metavar="DEVICE",
    help="cpu, cuda or cuda:1. Default: a GPU, or the CPU without one.",
)
@click.option(
    "--arch", default="sm_90", show_default=True, help="Architecture of the inspected kernels."
)
@click.option("--no-timing", is_flag=True, help="Do not time.")
@click.option("--save", metavar="FILE", help="Write a report as JSON.")
@click.option(
    "--plot", metavar="FILE", help="Draw error against x, and bandwidth, as .png or .svg."
)
@click.option("--force", is_flag=True, help="Overwrite files.")
def compare(op: str, **arguments: Any) -> None:
    """Run OP, such as gelu, on every backend that can run it, and judge the results.

    diglot compares each backend's output with a float64 oracle and with the others' outputs. On a
    GPU it times each against a device copy. It also inspects the compiled kernels.
    """
    interpret_without_gpu()
    with one_line_errors():
        _compare(op, **arguments)


def _compare(
    op: str,
    *,
    path: str | None,
    tensors: tuple[str, ...],
    shape: str | None,
    dtype: str | None,
    seed: int,
    approximate: str | None,
    dim: str | None,
    alpha: str | None,
    p: str | None,
    backward: bool,
    device: str | None,
    arch: str,
    no_timing: bool,
    save: str | None,
    plot: str | None,
    force: bool,
) -> None:
    from diglot.backends.registry import BACKENDS, is_interpreted
    from diglot.reference.specs import find_spec
    from diglot.tools import compare as comparing
    from diglot.tools import inputs

    # Everything that can be known to be wrong is told before anything is computed.
    spec = find_spec(op)
    options = parse_options(approximate, dim, alpha, p)
    spec.check_options(options)
    where = find_device(device)
    check_files([path], {"--save": save, "--plot": plot}, force)
    if plot is not None:
        from diglot.tools.plots import check_plot

        check_plot(plot)
    data = inputs.load(
        spec,
        path,
        tensors=tensors,
        shape=None if shape is None else inputs.parse_shape(shape),
        dtype=None if dtype is None else inputs.parse_dtype(dtype),
        device=where,
        seed=seed,
    )
    messages = make_console(stderr=True)
    announcement = ""
    interpreted = [name for name in BACKENDS if is_interpreted(name, where)]
    if interpreted:
        elements = max(tensor.numel() for tensor in data)
        found = "no GPU found" if device is None else f"on {where}"
        names = " and ".join(interpreted)
        announcement = f"{found}: {names} interpreted on the CPU, {elements:,} elements"
    with show_progress(messages, announcement) as tell:
        result = comparing.compare(
            spec.name,
            *data,
            backward=backward,
            arch=arch,
            timed=not no_timing,
            seed=seed,
            progress=tell,
            **options,
        )
    _print(result)
    if save is not None:
        result.save(save, force)
        messages.print(f"wrote {save}")
    if plot is not None:
        result.plot(plot, force)
        messages.print(f"wrote {plot}")


def _print(result: Any) -> None:
    from diglot.tools import table as text

    console = make_console()
    console.print(text.heading(result), markup=False, style="bold")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in text.columns(result):
        justify: Any = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", vertical="bottom")
    for row in result.rows:
        style = None if row.reason is None else "dim"
        table.add_row(*(escape(cell) for cell in text.cells(row)), style=style)
    console.print(table)
    for note in text.notes(result):
        console.print(note, markup=False)
