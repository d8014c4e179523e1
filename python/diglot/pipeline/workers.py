"""Threads that do one thing each: copy a chunk. One of them does not do what memory can. Twin of
csrc/pipeline/workers.h.

Those of concurrent.futures hold Python's lock several times as long for a task, and many threads
that ask for it at once are what limits copies that Python drives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Task:
    """A call to come, or what came of it."""

    __slots__ = ("_arguments", "_error", "_function", "_result", "_under_way")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def run(self) -> None:
        """Calls the function."""
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        finally:
            self._under_way.release()
            del self  # the error's traceback holds this frame

    def done(self) -> bool:
        """Whether it has ended."""
        return not self._under_way.locked()

    def result(self) -> Any:
        """Waits for the end: what the function returned. Called once.

        Raises:
            What the function raised.
        """
        with self._under_way:
            error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._result
        finally:
            del error  # whose traceback holds this frame


class Workers:
    """So many threads, which begin with the first task.

    Args:
        count: how many.
        name: what their names begin with.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._is_over = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task:
        """Has a thread call a function.

        Raises:
            RuntimeError: the system starts no thread.
        """
        while len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        task = Task(function, arguments)
        self._tasks.put(task)
        return task

    def finish(self) -> None:
        """Ends the threads, once they have done what they are at; what they have not begun is left
        undone.
        """
        self._is_over = True
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._tasks = SimpleQueue()  # what is left holds what it was given

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_over:
            task.run()
            del task  # it holds what it was given
