"""What a function reads in addition to its arguments: found once, and checked before each replay.

A graph has addresses. It must not be replayed after a parameter was replaced or moved, or after a
module went from training to evaluation.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from diglot.graphs.errors import GraphError
from diglot.graphs.watch import Attributes, Place, attribute, watch

DEEPEST = 4  # objects within objects in which tensors are looked for
CONTAINERS = (
    nn.Module,
    dict,
    list,
    tuple,
    functools.partial,
    types.FunctionType,
    types.MethodType,
)
LIBRARIES = ("torch", "diglot")  # whose functions are not looked into
MODULE_OWN = frozenset(vars(nn.Module()))  # attributes that every module has


class State:
    """The tensors and the modules that a function reads in addition to its arguments.

    They are found in modules, in objects whose methods are called, in closures and default values,
    in the globals that a function names, and in partial functions. Lists, tuples and dictionaries
    of these count too.

    Attributes:
        places: of the tensors.
        modules: by name.
        module_places: where modules are that were found as a part of something else.
    """

    def __init__(self, *roots: Any) -> None:
        self.places: list[Place] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.module_places: list[Place] = []
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # an id is an object's while the object lives
        for i in range(len(roots)):
            self._visit("", roots, i, -1)
        self._seen.clear()
        self._kept.clear()

    def _look_into(self, name: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or depth > DEEPEST:
            return
        self._seen.add(id(value))
        self._kept.append(value)
        if isinstance(value, nn.Module):
            self._add_module(name, value)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._look_into(name, part, depth)
        elif inspect.ismethod(value):
            self._look_into(name, value.__self__, depth)
            self._look_into(name, value.__func__, depth)
        elif inspect.isfunction(value):
            self._add_function(name, value, depth)
        elif isinstance(value, dict):
            for key in list(value):
                self._visit(f"{name}[{key!r}]" if name else str(key), value, key, depth)
        elif isinstance(value, (list, tuple)):
            for i in range(len(value)):
                self._visit(f"{name}[{i}]", value, i, depth)
        elif not isinstance(value, (type, types.ModuleType)):
            prefix = f"{name}." if name else ""
            for key in [*getattr(value, "__dict__", {}), *_of_class(value)]:
                self._visit(*attribute(f"{prefix}{key}", value, key), depth)

    def _visit(self, name: str, owner: Any, key: Any, depth: int) -> None:
        try:
            value = owner[key]
        except LookupError:  # a closure's variable that has no value yet
            return
        if isinstance(value, Tensor):
            self._add_tensor(name, owner, key)
            return
        if isinstance(value, nn.Module):
            self.module_places.append(Place(name, owner, key))
        if depth <= 1 or isinstance(value, CONTAINERS):
            self._look_into(name, value, depth + 1)

    def _add_function(self, name: str, function: Callable[..., Any], depth: int) -> None:
        compiled = getattr(function, "_torchdynamo_orig_callable", None)
        if compiled is not None:
            self._look_into(name, compiled, depth)
            return
        if str(function.__module__).partition(".")[0] in LIBRARIES:
            return
        code = function.__code__
        names = _names_in(code)
        for key in names:
            if key not in function.__globals__:
                continue
            self._visit(key, function.__globals__, key, max(depth, 1))
            held = function.__globals__[key]
            if isinstance(held, types.ModuleType):
                for part in names:
                    if isinstance(vars(held).get(part), (Tensor, nn.Module, list, tuple, dict)):
                        self._visit(f"{key}.{part}", vars(held), part, max(depth, 1))
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._visit(key, Attributes(cell), "cell_contents", max(depth, 1))
        for defaults in (function.__defaults__, function.__kwdefaults__):
            self._look_into(name, defaults, depth)

    def _add_module(self, name: str, module: nn.Module) -> None:
        self.modules.append((name, module))
        attributes = vars(module)
        owners: dict[str, Any] = {key: attributes for key in attributes if key not in MODULE_OWN}
        for held in (module._parameters, module._buffers, module._modules):
            owners.update(dict.fromkeys(held, held))
        owners |= {key: Attributes(module) for key in _of_class(module) if key not in owners}
        prefix = f"{name}." if name else ""
        for key, owner in owners.items():
            self._visit(name if key == "_orig_mod" else f"{prefix}{key}", owner, key, 2)

    def _add_tensor(self, name: str, owner: Any, key: Any) -> None:
        if owner[key].layout == torch.strided:
            self.places.append(Place(name or "a tensor in reads", owner, key))

    @property
    def tensors(self) -> list[Tensor]:
        """Those that are there now, each once."""
        return list({id(place.value): place.value for place in self.places}.values())

    @property
    def parameters(self) -> list[Tensor]:
        """The leaves that require grad."""
        return [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]


def _of_class(value: object) -> list[str]:
    """Attributes that are not in an object's `__dict__`: slots, and tensors of its class."""
    found: dict[str, None] = {}
    for each in type(value).__mro__:
        if each.__module__.partition(".")[0] in (*LIBRARIES, "builtins"):
            continue
        for key, held in vars(each).items():
            if isinstance(held, (Tensor, types.MemberDescriptorType)):
                found[key] = None
    return list(found)


def _names_in(code: types.CodeType) -> list[str]:
    """The names of globals and attributes in a function, and in functions within it."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return list(dict.fromkeys([*code.co_names, *(n for each in inner for n in _names_in(each))]))


def leaves_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The leaves to which the outputs have gradients."""
    leaves, seen = [], set()
    waiting = [output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [each for each, _ in node.next_functions]
    return leaves


class StateCheck:
    """Whether what a graph reads is where it was when the graph was captured.

    Args:
        state: it.
        with_gradients: whether tensors must go on to require grad, or not to (`watch`).
    """

    def __init__(self, state: State, *, with_gradients: bool = False) -> None:
        # A tensor may be in several places, such as a module and an optimizer. One is enough to
        # look at the tensor itself.
        first = {id(place.value): place for place in reversed(state.places)}
        again = [place for place in state.places if first[id(place.value)] is not place]
        firsts = [place for place in state.places if first[id(place.value)] is place]
        self._places, self._modules = [*firsts, *again], state.modules
        self._module_places = state.module_places
        self._tensors = [place.value for place in self._places]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._layouts = list(map(_layout, self._tensors))
        self._gradients = [tensor.requires_grad for tensor in self._tensors]
        self._training = [module.training for _, module in state.modules]
        training = [attribute(name, each, "training") for name, each in state.modules]
        others = [*again, *training, *state.module_places]
        self._first_changed = watch(firsts, others, with_gradients=with_gradients)

    def check(self) -> None:
        """Raises GraphError, which names the tensor or the module, unless all is as it was."""
        changed = self._first_changed()
        if changed >= len(self._places):
            raise self._error_of_module(changed - len(self._places))
        if changed >= 0:
            raise self._error_of_tensor(changed)

    def _error_of_tensor(self, number: int) -> GraphError:
        place, tensor = self._places[number], self._tensors[number]
        try:
            now = place.value
        except LookupError:
            return GraphError(f"{place.name} is gone, which the graph reads: capture anew")
        if now is not tensor:
            return GraphError(
                f"{place.name} was replaced by another tensor after the capture, and the graph "
                "would read the old one: copy into it (copy_), or capture anew"
            )
        if now.data_ptr() != self._addresses[number]:
            return GraphError(
                f"{place.name} has moved in memory since the capture, and the graph would read "
                "the old memory: capture anew"
            )
        if _layout(now) == self._layouts[number]:
            did, does = ("did", "does not") if self._gradients[number] else ("did not", "does")
            return GraphError(
                f"{place.name} {did} require grad in the capture, and {does} now; the graph goes "
                "on as it was captured: set it back (requires_grad_), or capture anew"
            )
        return GraphError(
            f"{place.name} had {self._layouts[number]} in the capture, and has {_layout(now)}: "
            "capture anew"
        )

    def _error_of_module(self, number: int) -> GraphError:
        if number >= len(self._modules):
            place = self._module_places[number - len(self._modules)]
            return GraphError(
                f"module {place.name} was replaced after the capture, and the graph would run the "
                "old one: capture anew"
            )
        name, module = self._modules[number]
        modes = ("evaluation", "training")
        return GraphError(
            f"module {name or type(module).__name__} was captured in "
            f"{modes[self._training[number]]} mode, and is now in {modes[module.training]} mode: "
            "switch it back, or capture anew"
        )


def _layout(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)} and strides {tensor.stride()}"
