"""What the commands share: errors in one line, consoles, arguments in words."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import rich.table
from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from diglot.tools.table import Column, Table

PIPED_WIDTH = 1000  # wide enough that nothing is wrapped where a program reads the output
NO_BREAK = "\N{NO-BREAK SPACE}"


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
    except (BrokenPipeError, click.exceptions.Exit):  # who read the output has gone; a status
        raise
    except ImportError as error:
        raise Failure(str(error)) from error
    except (ValueError, TypeError, IndexError, OSError) as error:
        raise Failure(" ".join(str(error).split())) from error
    except (RuntimeError, MemoryError) as error:
        from diglot.backends import BackendUnavailable
        from diglot.tools.inputs import is_out_of_memory, tell_out_of_memory
        from diglot.tools.machine_code import ResourcesUnavailable

        if isinstance(error, (BackendUnavailable, ResourcesUnavailable)):
            raise Failure(" ".join(str(error).split())) from error
        if not is_out_of_memory(error):
            raise
        raise Failure(tell_out_of_memory(error)) from error


def command(**settings: Any) -> Callable[[Callable[[Any], None]], click.Command]:
    """Decorator: a command of click's. Its function takes the options' values, by their names.

    It may raise what `one_line_errors` turns.
    """

    def decorate(function: Callable[[Any], None]) -> click.Command:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            with one_line_errors():
                function(SimpleNamespace(**arguments))

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
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)
    return console


def print_verdict(line: str, is_bad: bool = False) -> None:
    """Prints the result of a command in one line. Its figures follow."""
    make_console().print(line, markup=False, style="bold red" if is_bad else "bold")


def print_indented(console: Console, text: str, style: str | None = None) -> None:
    """Prints a text of one line. Where it must wrap, its further lines are indented.

    It does not wrap at a no-break space, in whose place a space is printed.
    """
    lines = textwrap.fill(
        text,
        console.width,
        subsequent_indent="   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(lines.replace(NO_BREAK, " "), markup=False, style=style, soft_wrap=True)


def print_table(columns: Sequence[Column | str], body: Iterable[Sequence[str]]) -> None:
    """Prints cells under columns. Leaves out empty columns, and prints nothing without rows.

    On a narrow console the first cell of a row stands above the row. If that is not enough, or
    saves nothing, a row is printed as pairs of a title and a cell.
    """
    from diglot.tools.numbers import NOTHING
    from diglot.tools.table import Table

    shown = Table(columns, list(body)).shown()
    if not shown.rows:
        return
    console = make_console()
    if _fits(console, shown):
        console.print(shown.rich())
        return
    rest = Table(shown.titles[1:], [cells[1:] for cells in shown.rows])
    groups = [(first, [*of]) for first, of in itertools.groupby(shown.rows, lambda row: row[0])]
    is_table = len(groups) < len(shown.rows) and _fits(console, rest)
    titles = [column.title.replace("\n", " ") for column in rest.columns]
    for first, group in groups:
        console.print(first, markup=False, style="bold")
        rows = [cells[1:] for cells in group]
        if is_table:
            console.print(Table(rest.titles, rows).rich())
            continue
        for cells in rows:
            pairs = [
                f"[dim]{escape(title)}[/dim] {escape(cell)}"
                for title, cell in zip(titles, cells, strict=True)
                if cell not in ("", NOTHING)
            ]
            row = rich.table.Table.grid(padding=(0, 1))
            row.add_row("•", Columns(pairs, padding=(0, 3)))
            console.print(row)
        console.print()


def _fits(console: Console, table: Table) -> bool:
    unbounded = console.options.update(max_width=sys.maxsize)
    return Measurement.get(console, unbounded, table.rich()).minimum <= console.width


class _Number(click.ParamType):
    """A number of an op's: an integer of 64 bits or a finite float, unless it says inf."""

    name = "number"

    def convert(self, value: str, param: Any, ctx: click.Context | None) -> int | float:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                number = kind(value)
                is_finite = math.isfinite(number) or value.lower().strip("+-") in ("inf", "nan")
                if is_finite and (kind is float or abs(number) < 1 << 63):
                    return number
        raise click.BadParameter(f"it must be a number of 64 bits, not {value!r}", ctx, param)


NUMBER = _Number()
# Options of ops.
OP_OPTIONS = {
    "p": "dropout: the probability that an element is zeroed.",
    "alpha": "add: the factor of the second input.",
    "dim": "softmax, log_softmax: the dimension.",
    "approximate": "gelu: none or tanh.",
}


def op_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: options of ops, which `given` collects."""
    for name, text in reversed(OP_OPTIONS.items()):
        kind = str if name == "approximate" else NUMBER
        command = click.option(f"--{name}", type=kind, help=text)(command)
    return command


def case_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: options that choose cases: passes, dtypes and shapes."""
    passes = click.Choice(["forward", "backward", "both"])
    for option in (
        click.option("--shape", "shapes", multiple=True, help="Such as 8192x8192; repeatable."),
        click.option("--dtype", "dtypes", multiple=True, help="Such as bf16; repeatable."),
        click.option("--direction", type=passes, default="both", help="The pass. Default: both."),
    ):
        command = option(command)
    return command


def given(asked: Any) -> dict[str, Any]:
    """The op's options that have a value."""
    return {name: value for name in OP_OPTIONS if (value := getattr(asked, name)) is not None}


def check_files(read: Iterable[str | None], written: dict[str, str | None], force: bool) -> None:
    """Refuses a file that cannot or must not be written, or that two options name.

    `read` are the names of inputs, and `written` the names of outputs, by option.
    """
    from diglot.files import check_writable
    from diglot.tools.drawing import check_plot

    options = {os.path.realpath(name): "--input" for name in read if name is not None}
    for option, name in written.items():
        if name is None:
            continue
        try:
            check_writable(name, force)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from error
        if option == "--plot":
            check_plot(name)
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


class Steps:
    """Shows the current step of a command, and its progress, on a terminal.

    A call with a message begins a step. The announcement precedes the first step.
    """

    def __init__(self, bars: Progress, announcement: str) -> None:
        self.bars, self.announcement = bars, announcement
        self.task = bars.add_task("starting", total=None)

    def __call__(self, message: str) -> None:
        if self.announcement:
            self.bars.console.print(self.announcement, markup=False)
            self.announcement = ""
        self.bars.reset(self.task, total=None, description=escape(message))

    def say(self, message: str) -> None:
        """Names the current part of this step."""
        self.bars.update(self.task, description=escape(message))

    def done(self, count: int, total: int) -> None:
        """Shows that `count` of the `total` parts of this step are done."""
        self.bars.update(self.task, completed=count, total=total)


@contextmanager
def show_progress(console: Console, announcement: str) -> Iterator[Steps]:
    """Context manager: shows the steps of a command, and clears them at the end."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        yield Steps(bars, announcement)


def interpret_without_gpu() -> None:
    """Has kernels interpreted, where there is no GPU to run them: before diglot is imported."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DIGLOT_INTERPRET", "1")
