"""`diglot compare`."""

from __future__ import annotations

import math
from typing import Any

import click

from diglot_cli.common import (
    check_files,
    command,
    find_device,
    given,
    interpret_without_gpu,
    make_console,
    op_options,
    print_table,
    print_verdict,
    show_progress,
)


@command()
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
@click.option("--no-kernels", is_flag=True, help="Do not look at compiled kernels.")
@click.option("--no-timing", is_flag=True, help="Do not time.")
@click.option(
    "--limit",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Refuse interpreted work that would take longer by an estimate; inf: refuse none.",
)
@click.option("--save", metavar="FILE", help="Write a report as JSON.")
@click.option("--plot", metavar="FILE", help="Draw error against x, as .png or .svg.")
@click.option("--force", is_flag=True, help="Overwrite files.")
def compare(asked: Any) -> None:
    """Run OP, such as gelu, on every backend that can run it, and judge the results.

    diglot compares each backend's output with a float64 oracle and with the others' outputs. On a
    GPU it times each against a device copy. It also inspects the compiled kernels.
    """
    interpret_without_gpu()
    from diglot.backends.registry import BACKENDS, is_interpreted
    from diglot.reference.specs import find_spec
    from diglot.tools import compare as comparing
    from diglot.tools import inputs, interpreted
    from diglot.tools.numbers import duration

    # Everything that can be known to be wrong is told before anything is computed.
    spec = find_spec(asked.op)
    options = given(asked)
    spec.check_options(options)
    where = find_device(asked.device)
    check_files([asked.path], {"--save": asked.save, "--plot": asked.plot}, asked.force)
    sizes = None if asked.shape is None else inputs.parse_shape(asked.shape)
    kind = None if asked.dtype is None else inputs.parse_dtype(asked.dtype)

    def announce(sizes: tuple[int, ...], kind: Any) -> str:
        """Says which backends are interpreted, or "". Raises if the work would take too long."""
        names = [name for name in BACKENDS if is_interpreted(name, where)]
        if not names:
            return ""
        count = f"{math.prod(sizes):,} elements"
        said = f"{' and '.join(names)} interpreted on the CPU, {count}"
        if math.prod(sizes) >= interpreted.LARGE and asked.limit < math.inf:
            with show_progress(messages, "") as tell:
                tell(f"estimating how long {count} take")
                seconds = interpreted.estimate_seconds(
                    spec, sizes, kind, where, asked.backward, options
                )
            said += f", about {duration(seconds)}"
            if seconds > asked.limit:
                raise ValueError(
                    f"{said}, beyond the limit of {duration(asked.limit)}: use fewer "
                    "elements, a GPU, or --limit SECONDS"
                )
        return f"{'no GPU found' if asked.device is None else f'on {where}'}: {said}"

    messages = make_console(stderr=True)
    announcement = "" if sizes is None else announce(sizes, kind)
    data = inputs.load(
        spec,
        asked.path,
        tensors=asked.tensors,
        shape=sizes,
        dtype=kind,
        device=where,
        seed=asked.seed,
    )
    if sizes is None:
        announcement = announce(tuple(data[0].shape), data[0].dtype)
    with (
        show_progress(messages, announcement) as tell,
        interpreted.follow_programs(tell.done),
    ):
        result = comparing.compare(
            spec.name,
            *data,
            backward=asked.backward,
            arch=asked.arch,
            timed=not asked.no_timing,
            resources=not asked.no_kernels,
            seed=asked.seed,
            progress=tell,
            **options,
        )
    _print(result)
    if asked.save is not None:
        result.save(asked.save, asked.force)
        messages.print(f"wrote {asked.save}")
    if asked.plot is not None:
        result.plot(asked.plot, asked.force)
        messages.print(f"wrote {asked.plot}")


def _print(result: Any) -> None:
    from diglot.tools import comparison_text as text

    for line, is_bad in text.verdicts(result):
        print_verdict(line, is_bad)
    console = make_console()
    console.print(text.heading(result), markup=False)
    for table in text.tables(result):
        print_table(table.titles, table.rows)
    for note in text.notes(result):
        console.print(note, markup=False)
