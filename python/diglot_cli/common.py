"""What the commands share: errors in one line, consoles, arguments in words."""

from __future__ import annotations

import functools
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPED_WIDTH = 240  # wide enough that nothing is wrapped where a program reads the output


class Failure(click.ClickException):
    """An error of the user's: one line, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Prints the line."""
        print(f"error: {self.format_message()}", file=file or sys.stderr)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns what users can cause into one line."""
    try:
        yield
    except BrokenPipeError:  # who read the output has gone: click ends in silence
        raise
    except ImportError as error:
        raise Failure(str(error)) from error
    except (ValueError, TypeError, OSError) as error:
        raise Failure(" ".join(str(error).split())) from error
    except (RuntimeError, MemoryError) as error:
        from diglot.backends import BackendUnavailable
        from diglot.tools.inputs import is_out_of_memory, tell_out_of_memory

        if isinstance(error, BackendUnavailable):
            raise Failure(" ".join(str(error).split())) from error
        if not is_out_of_memory(error):
            raise
        raise Failure(tell_out_of_memory(error)) from error


def command(**settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Decorator: a command of click's whose function may raise what `one_line_errors` turns."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            with one_line_errors():
                function(**arguments)

        return click.command(**settings)(run)

    return decorate


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt here, as Ctrl-C does: schedulers end long jobs with it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def usage_errors() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        hint = error.ctx.command_path if error.ctx else "diglot"
        text = " ".join(error.format_message().split())
        raise Failure(f"{text} (see {hint} --help)") from error


def make_console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)
    return console


def print_table(columns: Iterable[Any], body: Iterable[Sequence[str]]) -> None:
    """Prints cells under columns, each a `diglot.tools.table.Column`."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        justify: Any = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", vertical="bottom")
    for cells in body:
        table.add_row(*map(escape, cells))
    make_console().print(table)


def parse_number(option: str, text: str) -> bool | int | float:
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


def op_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options of ops, which `parse_options` reads."""
    for name, metavar, text in (
        ("p", "NUMBER", "dropout: the probability that an element is zeroed."),
        ("alpha", "NUMBER", "add: the factor of the second input."),
        ("dim", "NUMBER", "softmax, log_softmax: the dimension."),
        ("approximate", "FORM", "gelu: none or tanh."),
    ):
        command = click.option(f"--{name}", metavar=metavar, help=text)(command)
    return command


def parse_options(
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
        options["alpha"] = parse_number("--alpha", alpha)
    if p is not None:
        options["p"] = parse_number("--p", p)
    return options


def check_files(read: Iterable[str | None], written: dict[str, str | None], force: bool) -> None:
    """Refuses a file that cannot or must not be written, or that two options name.

    `read` are the names of inputs, and `written` the names of outputs, by option.
    """
    from diglot.files import check_writable

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


def find_device(name: str | None) -> Any:
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


@contextmanager
def show_progress(console: Console, announcement: str) -> Iterator[Callable[[str], None]]:
    """A function that shows the next step. The announcement precedes the first step."""
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


def interpret_without_gpu() -> None:
    """Has kernels interpreted, where there is no GPU to run them: before diglot is imported."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DIGLOT_INTERPRET", "1")
