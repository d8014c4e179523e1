"""Scopes of a profile around the modules of a model, by hooks of `torch.nn`."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.compiler import is_compiling
from torch.nn import Module
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

PREFIX = "nn.Module: "  # as PyTorch's profiler begins the names of modules

Scope = Callable[[str], AbstractContextManager[Any]]


class _Names:
    """The names of modules: the path below the outermost module that was called.

    The outermost one has the name of its class. A name that another module has is made distinct.
    """

    def __init__(self) -> None:
        self._names: dict[Module, str] = {}
        self._lock = threading.Lock()

    def find(self, module: Module) -> str:
        """The name of a module that is called."""
        with self._lock:
            if module not in self._names:
                self._add(module)
            return self._names[module]

    def _add(self, outermost: Module) -> None:
        taken = set(self._names.values())
        title = kind = type(outermost).__name__
        number = 1
        while title in taken:
            number += 1
            title = f"{kind} {number}"
        for path, module in outermost.named_modules():
            name = f"{title}.{path}" if path in taken else path or title
            self._names.setdefault(module, name)


@contextmanager
def module_scopes(scope: Scope) -> Iterator[None]:
    """Context manager: every call of a module, on any thread, runs in a scope with its name.

    Graphs that `torch.compile` makes hold no scopes: there the outermost module alone has one.

    Args:
        scope: from a name, such as "nn.Module: encoder.layer.0", a context manager.
    """
    # What it warns of is wanted: a scope for the compiled module.
    warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are")
    names, threads = _Names(), threading.local()

    def enter(module: Module, inputs: Any) -> None:
        if is_compiling():
            return
        entered = scope(PREFIX + names.find(module))
        entered.__enter__()
        threads.__dict__.setdefault("open", []).append((module, entered))

    def leave(module: Module, inputs: Any, output: Any) -> None:
        # A call that had begun before the scopes did has none.
        if not is_compiling() and threads.__dict__.get("open"):
            if threads.open[-1][0] is module:
                threads.open.pop()[1].__exit__(None, None, None)

    before = register_module_forward_pre_hook(enter)
    after = register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
