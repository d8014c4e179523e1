"""How plans run: one function starts every launch, in one of three ways.

- On a GPU it uses handles to compiled kernels. A plan keeps them with the known part of their
  arguments, so a call with a known plan only collects addresses and starts the kernels.
- In a graph that is being compiled it records kernels, and the compiler sees into them.
- Under Triton's interpreter it calls the kernels directly.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, get_type_hints

import torch
from torch import Tensor

from diglot.backends.choosing import planned, planning_of
from diglot.backends.driver import driver
from diglot.backends.forks import renew_in_children
from diglot.backends.plans import Plan, Scratch
from diglot.backends.tunables import on_change, record_reads
from diglot.triton_ops.lib.types import INTERPRETED

# Relative, because mypy finds this folder under its name in the tree.
from .descriptors import Descriptor, with_room
from .handles import check_scratch, find_handle, occupancy, runner_of
from .plan import (
    ACCESS_BYTES,
    INTERPRETER,
    TRACED,
    Device,
    Launch,
    Operand,
    Part,
    Unseen,
    value_of,
)

COOPERATIVE_LAUNCH = 95  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
MOST_PLANS = 1024  # of a launcher

_UNSEEN = Unseen()
launchers: list[Any] = []  # all of them
_plans_lock = threading.Lock()
_generation = 0  # how often all plans were forgotten
# The interpreter changes Triton's language while a kernel runs, for all threads.
_interpreter = threading.RLock()
renew_in_children(globals(), "_plans_lock")
renew_in_children(globals(), "_interpreter", threading.RLock)

# The source of a launcher: it builds a plan's key and runs the plan. Each launcher has its own
# source, so that a call needs no loops.
_SOURCE = """
def {name}({parameters}, scratch):
    if type({out}) is not Tensor:
        return trace(({arguments},), scratch)
    {look}
    key = ({out}.get_device(), {key},)
    run = plans.get(key) or prepare(key, ({arguments},))
    return run((None, {pointers}), scratch, ({unseen}))
"""
_LOOK = "address{i} = {name}.data_ptr()"
_LOOK_IF_GIVEN = """\
if {name} is None:
        address{i} = look{i} = None
    else:
        address{i} = {name}.data_ptr()
        look{i} = ({name}.dtype, {name}.shape, {name}.stride(), address{i} & 15)"""


def launcher(planner: Callable[..., Plan]) -> Any:
    """Decorator: turns a planner, the function that plans launches, into a launcher.

    The planner's parameters are annotated. `Operand` or `Operand | None` stands for a tensor; the
    last tensor is an output. `Unseen` stands for an argument that no plan depends on. Other
    arguments are part of a plan's key, unchanged.

    Returns:
        A function of the same parameters and `scratch`. It runs the plan and returns its variant.
        If the plan needs scratch and `scratch` is None, it runs nothing and returns the
        requirement, a `Scratch`. Its attribute `planner` is the planner; its global `plans` has the
        kept plans.
    """
    op = planner.__module__.rpartition(".")[2]

    @functools.wraps(planner)
    def plan_here(*described: Any) -> Plan:
        with planning_of(op, planner.__name__):
            return planned(lambda: planner(*described), planner.__name__)

    hints = get_type_hints(planner)
    names = list(inspect.signature(planner).parameters)
    arrays = [name for name in names if hints[name] in (Operand, Operand | None)]
    look, key, pointers = [], [], []
    for i, name in enumerate(arrays):
        is_required = hints[name] is Operand
        look.append((_LOOK if is_required else _LOOK_IF_GIVEN).format(i=i, name=name))
        described = f"{name}.dtype, {name}.shape, {name}.stride(), address{i} & 15"
        key.append(described if is_required else f"look{i}")
        pointers.append(name if INTERPRETED else f"address{i}")
    unseen = [name for name in names if hints[name] is Unseen]
    seen = [name for name in names if name not in arrays and name not in unseen]
    source = _SOURCE.format(
        name=planner.__name__,
        parameters=", ".join(names),
        arguments=", ".join(names),
        out=arrays[-1],
        look="\n    ".join(look),
        key=", ".join(key + seen),
        pointers=", ".join(pointers),
        unseen=", ".join([*unseen, ""]),
    )
    scope: dict[str, Any] = {"Tensor": Tensor, "plans": {}}

    def describe(arguments: tuple[Any, ...], device: Device, address: Any) -> list[Any]:
        return _describe(hints, names, arguments, device, address)

    def prepare(key: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
        index, facts = key[0], _facts_of(key[0])

        def plan_on(device: Device) -> Plan:
            return plan_here(*describe(arguments, device, _address))

        generation = _generation
        run = planned(lambda: _prepare(plan_on, facts, index), planner.__name__)
        with _plans_lock:
            if generation != _generation:  # older numbers may have made it
                return run
            plans = scope["plans"]
            while len(plans) >= MOST_PLANS:
                del plans[next(iter(plans))]
            plans[key] = run
        return run

    def trace(arguments: tuple[Any, ...], scratch: Tensor | None) -> Any:
        made = plan_here(*describe(arguments, _traced_facts(arguments), _unknown_address))
        tensors = [a for a, name in zip(arguments, names, strict=True) if name in arrays]
        numbers = [a for a, name in zip(arguments, names, strict=True) if name in unseen]
        return _trace(made, (None, *tensors), scratch, tuple(numbers))

    scope |= {"prepare": prepare, "trace": trace}
    exec(source, scope)
    made: Any = scope[planner.__name__]
    made.__doc__, made.__module__ = planner.__doc__, planner.__module__
    made.planner, made.describe = plan_here, describe
    launchers.append(made)
    return made


def plan(launcher: Any, device: tuple[Any, ...] | None, *arguments: Any) -> Plan:
    """The plan of a call: what the launcher would launch.

    Args:
        launcher: the launcher.
        device: a device that is only named, as a tuple like `Device`. None: the tensors' device,
            which is unknown while they are traced. With a named device no address is read, so
            tensors may be on any device. Their storage offsets then stand for addresses, as if
            storages were aligned.
        arguments: the launcher's, without `scratch`.
    """
    *_, out = (argument for argument in arguments if isinstance(argument, Tensor))
    if device is not None:
        described = launcher.describe(arguments, Device(*device), _address_in_storage)
    elif type(out) is not Tensor:
        # A compiled graph's kernels get room for their descriptors from the compiler.
        described = launcher.describe(arguments, _traced_facts(arguments), _unknown_address)
    else:
        described = launcher.describe(arguments, _facts_of(out.get_device()), _address)
    with record_reads() as decided:
        made: Plan = launcher.planner(*described)
    made = made if device is None and type(out) is not Tensor else with_room(made)
    return made._replace(tunables=tuple(decided.items()))


def _describe(
    hints: dict[str, Any],
    names: list[str],
    arguments: tuple[Any, ...],
    device: Device,
    address: Callable[[Tensor], int | None],
) -> list[Any]:
    """Arguments in the form that planners take."""
    described: list[Any] = []
    position = 0
    for name, argument in zip(names, arguments, strict=True):
        hint = hints[name]
        if hint is Unseen:
            described.append(_UNSEEN)
        elif hint in (Operand, Operand | None):
            if argument is not None:
                argument = Operand(
                    position,
                    argument.dtype,
                    tuple(argument.shape),
                    argument.stride(),
                    address(argument),
                    device,
                )
            described.append(argument)
            position += 1
        else:
            described.append(argument)
    return described


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() % ACCESS_BYTES


def _unknown_address(tensor: Tensor) -> None:
    """None: while a compiler traces, addresses are unknown."""


def _address_in_storage(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size() % ACCESS_BYTES


@on_change
def _forget_plans() -> None:
    """Forgets plans that older tunables made. A new generation of plans begins."""
    global _generation
    with _plans_lock:
        _generation += 1
        for each in launchers:
            each.__globals__["plans"].clear()


def _traced_facts(arguments: tuple[Any, ...]) -> Device:
    """Facts of the device of traced tensors."""
    *_, out = (argument for argument in arguments if isinstance(argument, Tensor))
    if out.device.type != "cuda" or not torch.cuda.is_available():
        return TRACED
    index = torch.cuda.current_device() if out.device.index is None else out.device.index
    return TRACED._replace(name=_gpu_facts(index).name)


def _facts_of(index: int) -> Device:
    """Facts of the device with this index, or of the interpreter."""
    return INTERPRETER if INTERPRETED else _gpu_facts(index)


@functools.cache
def _gpu_facts(index: int) -> Device:
    # The facade accepts only CUDA tensors, but operators can be called without it.
    if index < 0:
        raise ValueError("a Triton kernel takes CUDA tensors")
    is_cooperative = ctypes.c_int()
    driver().cuDeviceGetAttribute(ctypes.byref(is_cooperative), COOPERATIVE_LAUNCH, index)
    properties = torch.cuda.get_device_properties(index)
    return Device(
        10 * properties.major + properties.minor,
        properties.multi_processor_count if is_cooperative else 0,
        properties.shared_memory_per_multiprocessor,
        properties.major >= 9,
        properties.name,
    )


def _prepare(
    planner: Callable[[Device], Plan], device: Device, index: int
) -> Callable[..., str | Scratch]:
    """The function of pointers, scratch and unseen arguments that runs a plan on a device."""
    made = with_room(planner(device))
    facts = _facts_of(index)
    if INTERPRETED:
        return functools.partial(_interpret, made)
    with torch.cuda.device(index):
        handles = [find_handle(launch.specialization, index) for launch in made.launches]
        for launch, handle in zip(made.launches, handles, strict=True):
            if not launch.cooperative:
                continue
            fit = occupancy(handle, facts) * facts.multiprocessors
            if launch.count <= fit:
                continue
            per = launch.per_multiprocessor
            if per is None or fit < per or device.multiprocessors == fit // per:
                raise ValueError(
                    f"launching {launch.kernel.fn.__name__}: its programs wait for each other, "
                    f"{launch.count} of them were asked for, and of {launch.num_warps} warps and "
                    f"{handle.metadata.shared} bytes of shared memory this device runs {fit} at "
                    "once"
                )
            # Plans again as if the device had fewer multiprocessors, so that all that depends on
            # their number changes too.
            return _prepare(planner, device._replace(multiprocessors=fit // per), index)
    return runner_of(made, handles, index)


def _arguments(
    launch: Launch,
    tensors: tuple[Tensor | None, ...],
    scratch: Tensor | None,
    unseen: tuple[Any, ...],
) -> list[Any]:
    """A kernel's arguments without its constants, with tensors as pointers."""

    def find(pointer: Operand | Part | None) -> Tensor | None:
        if isinstance(pointer, Part):
            assert scratch is not None
            return scratch[pointer.offset : pointer.end].view(pointer.dtype)
        return None if pointer is None else tensors[pointer.position + 1]

    arguments: list[Any] = []
    for pointer in launch.pointers:
        if isinstance(pointer, Descriptor):
            tensor = find(pointer.part or pointer.operand)
            assert tensor is not None
            arguments.append(pointer.of_tensor(tensor))
        else:
            arguments.append(find(pointer))
    arguments += map(value_of, launch.scalars)
    if launch.numbers is not None:
        arguments += launch.numbers(*unseen)
    return arguments


def _interpret(
    made: Plan,
    tensors: tuple[Tensor | None, ...],
    scratch: Tensor | None,
    unseen: tuple[Any, ...],
) -> str | Scratch:
    """Runs a plan under Triton's interpreter.

    It also computes masked lanes, such as log(0), so NumPy's warnings are off.
    """
    import numpy as np

    if made.scratch is not None:
        if scratch is None:
            return made.scratch
        check_scratch(scratch, made.scratch, ACCESS_BYTES)
    for launch in made.launches:
        arguments = _arguments(launch, tensors, scratch, unseen)
        for phase in range(1, launch.phases + 1) or [None]:
            phases = () if phase is None else (phase,)
            with _interpreter, np.errstate(all="ignore"):
                launch.kernel[launch.axes](*arguments, *launch.constants, *phases)
    return made.variant


def _trace(
    made: Plan,
    tensors: tuple[Tensor | None, ...],
    scratch: Tensor | None,
    unseen: tuple[Any, ...],
) -> str | Scratch:
    """Records a plan's kernels in a graph that is being compiled."""
    if made.scratch is not None and scratch is None:
        return made.scratch
    for launch in made.launches:
        arguments = _arguments(launch, tensors, scratch, unseen)
        wrapped = torch.library.wrap_triton(launch.kernel)
        options = launch.specialization.options()
        wrapped[launch.axes](*arguments, *launch.all_constants(), **options)
    return made.variant
