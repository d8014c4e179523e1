"""A bar that shows how many captures are done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(is_shown: bool, name: str, count: int) -> Iterator[Callable[[str], None]]:
    """Context manager: a function that is told which bucket is captured next, and shows it.

    Raises:
        ImportError: it is to be shown, and rich is not installed.
    """
    if not is_shown:
        yield lambda text: None
        return
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        raise ImportError('progress needs rich: pip install "diglot[tools]"') from None
    with progress.Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=count)

        def tell(text: str) -> None:
            done = bar.tasks[task].description != name
            bar.update(task, description=f"{name}: {text}", advance=1 if done else 0)

        yield tell
        bar.update(task, completed=count)
