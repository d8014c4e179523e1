"""The command line: `diglot compare`, `diglot info`, `diglot stream`."""

from __future__ import annotations

import io
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MISSING = 'error: the command line needs {}: pip install "diglot[tools]"'

try:
    import click
    from rich import box
    from rich.console import Console
    from rich.table import Table
except ImportError as missing:
    print(MISSING.format(missing.name), file=sys.stderr)
    raise SystemExit(2) from None

PIPED_WIDTH = 240  # wide enough that nothing is wrapped where a program reads the output


class Failure(click.ClickException):
    """An error of the user's: one line, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Prints the line."""
        print(f"error: {self.format_message()}", file=file or sys.stderr)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turns what users can cause into one line."""
    from diglot.backends import BackendUnavailable
    from diglot.tools.inputs import is_out_of_memory, tell_out_of_memory

    try:
        yield
    except BrokenPipeError:  # who read the output has gone: click ends in silence
        raise
    except ImportError as error:
        raise Failure(str(error)) from error
    except (ValueError, TypeError, BackendUnavailable, OSError) as error:
        raise Failure(" ".join(str(error).split())) from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise Failure(tell_out_of_memory(error)) from error


class _Group(click.Group):
    """A group whose usage errors are one line too."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_errors():
            return super().invoke(ctx)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        hint = error.ctx.command_path if error.ctx else "diglot"
        text = " ".join(error.format_message().split())
        raise Failure(f"{text} (see {hint} --help)") from error


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)
    return console


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="diglot", message="%(package)s %(version)s")
def app() -> None:
    """PyTorch ops written twice by hand, in CUDA C++ and in Triton."""


@app.command()
def info() -> None:
    """Tell what is installed, what it was built for, and which backends can run here."""
    from diglot.tools.info import collect

    with _one_line_errors():
        click.echo(str(collect()))


@app.command()
@click.argument("op")
@click.option("--input", "path", metavar="FILE", help="A .npy, .safetensors or .pt file.")
@click.option(
    "--tensor",
    "tensors",
    metavar="NAME",
    multiple=True,
    help="Tensor of the file; once per input. Default: what the file's metadata says.",
)
@click.option("--shape", metavar="SIZES", help="Random normal data of this shape, as 8192x8192.")
@click.option("--dtype", metavar="DTYPE", help="Convert to this dtype, as bf16 or float32.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**64 - 1),
    metavar="NUMBER",
    help="Of random data.",
)
@click.option("--approximate", metavar="FORM", help="gelu: none or tanh.")
@click.option("--dim", metavar="NUMBER", help="softmax, log_softmax: the dimension.")
@click.option("--alpha", metavar="NUMBER", help="add: the factor of the second input.")
@click.option("--p", metavar="NUMBER", help="dropout: the probability of an element to be zeroed.")
@click.option("--backward", is_flag=True, help="Compare gradients instead of the output.")
@click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1. Default: a GPU if any.")
@click.option(
    "--arch", default="sm_90", show_default=True, help="What to look at compiled kernels for."
)
@click.option("--no-timing", is_flag=True, help="Do not time.")
@click.option("--save", metavar="FILE", help="Write a report in JSON.")
@click.option(
    "--plot", metavar="FILE", help="Draw error against x, and bandwidth, as .png or .svg."
)
@click.option("--force", is_flag=True, help="Overwrite files.")
def compare(op: str, **arguments: Any) -> None:
    """Run OP, such as gelu, on every backend that can run it, and judge the results.

    Each backend's output is compared with a float64 oracle and with the others' outputs. On a GPU
    each is timed against a device copy. For both languages the compiled kernel is looked at.
    """
    with _one_line_errors():
        _compare(op, **arguments)


@app.command()
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
@click.option("--approximate", metavar="FORM", help="gelu: none or tanh.")
@click.option("--dim", metavar="NUMBER", help="softmax, log_softmax: the dimension.")
@click.option("--alpha", metavar="NUMBER", help="add: the factor of the second input.")
@click.option("--eps", metavar="NUMBER", help="layer_norm, rms_norm: added to the variance.")
@click.option("--mean", metavar="NUMBER", help="gaussian_pdf: the mean.")
@click.option("--std", metavar="NUMBER", help="gaussian_pdf: the standard deviation.")
@click.option("--terms", metavar="NUMBER", help="gaussian_pdf: the number of densities averaged.")
@click.option("--backend", metavar="NAME", help="cuda, triton, torch or auto.")
@click.option(
    "--chunk-bytes", metavar="SIZE", help="Of a chunk's largest array, as 16MiB. Default: by size."
)
@click.option(
    "--num-slots",
    default=3,
    show_default=True,
    type=click.IntRange(1, 64),
    metavar="NUMBER",
    help="Chunks on a device at once.",
)
@click.option("--devices", metavar="NUMBERS", help="GPUs to share the rows, as 0,1.")
@click.option("--report", metavar="FILE", help="Write what was done when, in JSON.")
@click.option("--plot", metavar="FILE", help="Draw it, as .png or .svg.")
@click.option("--force", is_flag=True, help="Overwrite files.")
def stream(op: str, **arguments: Any) -> None:
    """Run OP, such as gelu, over arrays in files that may be larger than memory, chunk by chunk.

    The files are mapped, not read as a whole. While a chunk is computed the next one is copied to
    the device and the last one back. OP is one whose rows, along the first dimension, do not depend
    on each other; layer_norm and rms_norm are over the last dimension, without weights.
    """
    with _one_line_errors():
        _stream(op, **arguments)


def _number(option: str, text: str) -> bool | int | float:
    if text in ("True", "False"):
        return text == "True"
    number: int | float
    try:
        number = int(text)
    except ValueError:
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"{option} must be a number, not {text!r}") from None
        if math.isinf(number) and "inf" not in text.lower():
            raise ValueError(f"{option} must fit a float64, unlike {text}") from None
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise ValueError(f"{option} must fit 64 bits if it is an integer, unlike {text}")
    return number


def _check_files(read: Iterable[str | None], written: dict[str, str | None], force: bool) -> None:
    """Refuses to write where nothing can or may be written, or over another of these files.

    `read` are the inputs' names, `written` those of what is to be written, by option.
    """
    from diglot.tools.files import check_writable

    options = {os.path.realpath(name): "--input" for name in read if name is not None}
    for option, name in written.items():
        if name is None:
            continue
        try:
            check_writable(name, force)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from error
        other = options.setdefault(os.path.realpath(name), option)
        if other != option:
            raise ValueError(f"{option} must name another file than {other}, and both are {name}")


def _options(
    approximate: str | None, dim: str | None, alpha: str | None, p: str | None
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if approximate is not None:
        options["approximate"] = approximate
    if dim is not None:
        try:
            options["dim"] = int(dim)
        except ValueError:
            raise ValueError(f"--dim must be an integer, not {dim!r}") from None
    if alpha is not None:
        options["alpha"] = _number("--alpha", alpha)
    if p is not None:
        options["p"] = _number("--p", p)
    return options


def _stream(
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
    **texts: str | None,
) -> None:
    import diglot
    from diglot.tools import streaming

    # Everything that can be known to be wrong is told before anything is computed.
    known = streaming.find(op)
    options: dict[str, Any] = {
        name: text if known.options.get(name) else _number(f"--{name}", text)
        for name, text in texts.items()
        if text is not None
    }
    size = None if chunk_bytes is None else streaming.parse_bytes(chunk_bytes)
    where = None if devices is None else streaming.parse_devices(devices)
    _check_files(paths, {"--output": output, "--report": report, "--plot": plot}, force)
    if Path(output).suffix.lower() != ".npy":
        raise ValueError(f"--output: {output} must end in .npy")
    if plot is not None:
        from diglot.tools.plots import check_plot

        check_plot(plot)
    inputs = streaming.open_inputs(known.inputs, paths, tensors)
    function = streaming.call(op, tuple(inputs[0].shape), options)
    shape, dtype = streaming.result_like(function, inputs)
    messages = _console(stderr=True)
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
    console = _console()
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


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        # Interpreted kernels take CPU tensors.
        on_gpu = torch.cuda.is_available() and os.environ.get("DIGLOT_INTERPRET") != "1"
        return torch.device("cuda" if on_gpu else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device must be cpu, cuda or cuda:N, not {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu, cuda or cuda:N, not {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(f"--device: there is no {name} here: PyTorch finds {count} GPUs")
    return device


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
    from diglot.tools import compare as comparing
    from diglot.tools import inputs
    from diglot.tools.specs import find_spec

    # Everything that can be known to be wrong is told before anything is computed.
    spec = find_spec(op)
    options = _options(approximate, dim, alpha, p)
    spec.check_options(options)
    where = _device(device)
    _check_files([path], {"--save": save, "--plot": plot}, force)
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
    messages = _console(stderr=True)
    announcement = ""
    interpreted = [name for name in BACKENDS if is_interpreted(name, where)]
    if interpreted:
        elements = max(tensor.numel() for tensor in data)
        found = "no GPU found" if device is None else f"on {where}"
        names = " and ".join(interpreted)
        announcement = f"{found}: {names} interpreted on the CPU, {elements:,} elements"
    with _progress(messages, announcement) as tell:
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


@contextmanager
def _progress(console: Console, announcement: str) -> Iterator[Callable[[str], None]]:
    """A function that shows what happens next. The announcement comes before the first of it."""
    announced = not announcement

    def announce() -> None:
        nonlocal announced
        if not announced:
            console.print(announcement, markup=False)
            announced = True

    if not console.is_terminal:
        yield lambda _: announce()
        return
    with console.status("starting") as status:

        def tell(message: str) -> None:
            announce()
            status.update(f"{message} …")

        yield tell


def _print(result: Any) -> None:
    from diglot.tools import table as text

    console = _console()
    console.print(text.heading(result), markup=False, style="bold")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in text.columns(result):
        justify: Any = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", vertical="bottom")
    for row in result.rows:
        style = None if row.reason is None else "dim"
        table.add_row(*(_escape(cell) for cell in text.cells(row)), style=style)
    console.print(table)
    for note in text.notes(result):
        console.print(note, markup=False)


def _escape(cell: str) -> str:
    from rich.markup import escape

    return escape(cell)


def _interpret_without_gpu() -> None:
    """Starts this command again with interpreters on, where there is no GPU to run it.

    Triton decides when it is imported, which it has been by now, so setting the variable is too
    late for this process.
    """
    import torch

    if "DIGLOT_INTERPRET" in os.environ or torch.cuda.is_available():
        return
    os.environ["DIGLOT_INTERPRET"] = "1"
    # Until `main` is reached, which takes seconds, Ctrl-C ends the process without a traceback.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "from diglot.cli import main; main()"
    )
    os.execv(sys.executable, [sys.executable, "-c", start, *sys.argv[1:]])


def main() -> None:
    """Entry point of `diglot`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where the encoding has no µ or –
    if not {"-h", "--help"} & set(sys.argv):
        if sys.argv[1:2] == ["compare"] or (
            # Kernels that are asked for; otherwise PyTorch's run.
            sys.argv[1:2] == ["stream"]
            and {"cuda", "triton", "--backend=cuda", "--backend=triton"} & set(sys.argv)
        ):
            _interpret_without_gpu()
    app(prog_name="diglot")


if __name__ == "__main__":
    main()
