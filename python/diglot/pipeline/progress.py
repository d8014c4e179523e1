"""A bar that shows how far a run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    is_shown: bool, name: str, rows: int, row_bytes: int
) -> Iterator[Callable[[int], None] | None]:
    """Context manager: a function that takes how many rows are done, and shows a bar with GB/s on
    standard error. None if no bar is wanted.

    Raises:
        ImportError: a bar is wanted, and rich is not installed.
    """
    if not is_shown:
        yield None
        return
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        raise ImportError('progress needs rich: pip install "diglot[tools]"') from None
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=rows * row_bytes)
        yield lambda done: bar.update(task, completed=done * row_bytes)
