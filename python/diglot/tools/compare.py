"""One op on every backend that can run, on the user's data: which is right, and which is fast."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from diglot.backends import explain, record_runs
from diglot.backends.registry import BACKENDS, is_interpreted
from diglot.bench.evidence import versions
from diglot.names import unknown_name
from diglot.reference.specs import Expected, OpSpec, as_tuple, find_spec, nbytes
from diglot.tools import measure
from diglot.tools.accuracy import (
    Agreement,
    Error,
    ProfileBuilder,
    measure_agreement,
    measure_error,
)
from diglot.tools.comparison import Comparison, Row, Speed
from diglot.tools.machine_code import ResourcesUnavailable
from diglot.tools.occupancy import find_limits
from diglot.tools.regimes import Regime, find_regime, peak_gb_per_s
from diglot.tools.resources import (
    DEFAULT_ARCHITECTURE,
    LANGUAGES,
    Call,
    Kernels,
    TensorLike,
    kernels_of_calls,
)


class _Case:
    """The call that is compared: how to make it on a backend, and what must come out."""

    def __init__(
        self,
        spec: OpSpec,
        inputs: tuple[Any, ...],
        options: dict[str, Any],
        backward: bool,
        seed: int,
    ) -> None:
        self.spec, self.options, self.backward = spec, options, backward
        self.inputs = tuple(i.detach() if isinstance(i, torch.Tensor) else i for i in inputs)
        self.tensors = tuple(i for i in self.inputs if isinstance(i, torch.Tensor))
        self.device = self.tensors[0].device
        # The op's own checks, which need no data and do not depend on the backend.
        likes = as_tuple(
            spec.function(
                *(i.to("meta") if isinstance(i, torch.Tensor) else i for i in self.inputs),
                **options,
            )
        )
        self.expected: dict[str, Expected]
        if not backward:
            self.expected = spec.expected(*self.inputs, **options)
            self.bytes = sum(map(nbytes, (*self.tensors, *likes)))
            return
        self.leaves = {
            name: i
            for name, i in zip(spec.inputs, self.inputs, strict=False)
            if isinstance(i, torch.Tensor) and i.is_floating_point()
        }
        if not self.leaves:
            raise ValueError(f"{spec.name}: backward needs a floating-point input")
        # With the inputs' seed, a gradient of the input's shape would equal the input.
        generator = torch.Generator(self.device).manual_seed((seed + 1) % 2**64)
        self.grads = [
            torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=self.device
            ).normal_(generator=generator)
            for like in likes
        ]
        expected = spec.backward(*self.grads, *self.inputs, **options)
        self.expected = {f"grad_{name}": expected[name] for name in self.leaves}
        self.bytes = spec.backward_bytes(*self.grads, *self.inputs, **options)

    def prepare(self, backend: str) -> Callable[[], dict[str, torch.Tensor]]:
        """A function that does the direction once, and only that."""
        if not self.backward:
            return lambda: self._call(self.inputs, backend)
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in self.leaves.items()}
        inputs = [
            leaves.get(name, given)
            for name, given in zip(self.spec.inputs, self.inputs, strict=False)
        ]
        outputs = list(self._call(inputs, backend).values())

        def differentiate() -> dict[str, torch.Tensor]:
            gradients = torch.autograd.grad(
                outputs, list(leaves.values()), self.grads, retain_graph=True
            )
            return {f"grad_{name}": g for name, g in zip(leaves, gradients, strict=True)}

        return differentiate

    def _call(self, inputs: Sequence[Any], backend: str) -> dict[str, torch.Tensor]:
        results = self.spec.function(*inputs, backend=backend, **self.options)
        return dict(zip(self.spec.outputs, as_tuple(results), strict=True))

    def call(self) -> Call:
        """The call without its data."""
        inputs = tuple(TensorLike.of(i) if isinstance(i, torch.Tensor) else i for i in self.inputs)
        return Call(self.spec.name, inputs, self.options, self.backward)


@dataclass
class _Ran:
    """What came of a backend: its row, and if it ran its function and the results."""

    row: Row
    function: Callable[[], dict[str, torch.Tensor]] | None = None
    results: dict[str, torch.Tensor] = field(default_factory=dict)


def _check_arguments(
    spec: OpSpec, inputs: tuple[Any, ...], backends: Sequence[str] | None, options: dict[str, Any]
) -> tuple[str, ...]:
    if len(inputs) != len(spec.inputs):
        raise ValueError(
            f"{spec.name} takes {len(spec.inputs)} inputs ({', '.join(spec.inputs)}), "
            f"not {len(inputs)}"
        )
    if not isinstance(inputs[0], torch.Tensor):
        raise TypeError(f"{spec.name}: {spec.inputs[0]} must be a tensor")
    spec.check_options(options)
    chosen = tuple(BACKENDS) if backends is None else tuple(backends)
    for name in chosen:
        if name not in BACKENDS:
            raise unknown_name("a backend", name, BACKENDS)
    return chosen


def compare(
    op: str | Callable[..., torch.Tensor],
    *inputs: Any,
    backward: bool = False,
    backends: Sequence[str] | None = None,
    arch: str = DEFAULT_ARCHITECTURE,
    timed: bool = True,
    resources: bool = True,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Runs one op on every backend that can run it, and judges the results.

    Args:
        op: the op's name, or the op (`diglot.gelu`).
        inputs: the op's inputs: tensors of any strides, on one device.
        backward: whether to compare the gradients of the inputs instead of the output. The output's
            gradient is random and normal, drawn with `seed`.
        backends: any of "cuda", "triton" and "torch"; by default all.
        arch: architecture of the inspected kernels, such as "sm_90".
        timed: whether to measure times. It needs a GPU; interpreted kernels are never timed.
        resources: whether to inspect the compiled kernels, which takes seconds.
        seed: of the output's gradient.
        progress: is called with each next step, in words.
        options: the op's keyword options, such as `approximate="tanh"`.

    Returns:
        A `Comparison`. For a backend that cannot run, its row gives the reason.

    Raises:
        ValueError: an op, option, backend or architecture is unknown, or inputs are wrong.
        TypeError: the op does not take such inputs.
    """
    spec = find_spec(op)
    chosen = _check_arguments(spec, inputs, backends, options)
    find_limits(arch)
    tell = progress or (lambda _: None)
    case = _Case(spec, inputs, options, backward, seed)
    scope = torch.cuda.device(case.device) if case.device.type == "cuda" else nullcontext()
    with scope, torch.set_grad_enabled(backward):
        ran = {name: _run(case, name, tell) for name in chosen}
        for name, of in ran.items():
            tell(f"measuring the error of {name}")
            of.row = _judged(case, of)
        tell("comparing the results with each other")
        agreement = _agree(ran)
        for of in ran.values():
            of.results = {}
        speeds: dict[str, Speed] = {}
        untimed = _why_untimed(case) if timed else None
        if timed and untimed is None:
            tell("timing")
            speeds = _time(case, ran)
    kernels: dict[str, Kernels] = {}
    languages = [language for language in LANGUAGES if language in chosen]
    if resources and languages:
        tell(f"looking at the kernels compiled for {arch}")
        kernels = _look_at_kernels(case, arch, languages)
    rows = [
        replace(of.row, speed=speeds.get(name), kernels=found.kernels, kernels_reason=found.reason)
        for name, of in ran.items()
        for found in [kernels.get(name, Kernels())]
    ]
    return Comparison(
        op=spec.name,
        direction="backward" if backward else "forward",
        options=dict(options),
        inputs=case.call().inputs,
        device=_device_name(case.device),
        architecture=arch,
        bytes=case.bytes,
        rows=tuple(rows),
        agreement=agreement,
        ceiling=speeds.get("copy"),
        untimed=untimed,
        versions=versions(),
    )


def _run(case: _Case, backend: str, tell: Callable[[str], None]) -> _Ran:
    interpreted = is_interpreted(backend, case.device)
    reason = explain(case.spec.name, case.device).reasons[backend]
    if reason is not None:
        return _Ran(Row(backend, reason, interpreted))
    tell(f"{'interpreting' if interpreted else 'running'} {backend}")
    try:
        function = case.prepare(backend)
        with record_runs() as runs:
            results = function()
        if case.device.type == "cuda":
            torch.cuda.synchronize(case.device)
    except Exception as error:  # one backend's failure is a finding about it, not the end
        lines = str(error).strip().splitlines() or [""]
        return _Ran(Row(backend, f"failed: {type(error).__name__}: {lines[0]}", interpreted))
    variants = tuple(run.variant for run in runs if run.backend == backend)
    return _Ran(Row(backend, None, interpreted, variants), function, results)


def _judged(case: _Case, ran: _Ran) -> Row:
    """The row with the errors of the results, and of the first one by the value of an input."""
    errors: list[Error] = []
    profile = None
    for name, result in ran.results.items():
        expected = case.expected[name]
        builder = None
        if not errors and result.is_floating_point() and expected.shown:
            builder = ProfileBuilder(next(iter(expected.shown.values())))
        errors.append(measure_error(result, expected, output=name, profile=builder))
        if builder is not None and result.numel():
            profile = builder.profile()
    worst = max(errors, key=lambda e: (e.worst_ulp, e.failing), default=None)
    return replace(ran.row, error=worst, errors=tuple(errors), profile=profile)


def _agree(ran: dict[str, _Ran]) -> tuple[Agreement, ...]:
    results = [(name, of.results) for name, of in ran.items() if of.results]
    return tuple(
        measure_agreement((a, of_a), (b, of_b))
        for (a, of_a), (b, of_b) in itertools.combinations(results, 2)
    )


def _why_untimed(case: _Case) -> str | None:
    reason = measure.why_not()
    if reason is None and case.device.type != "cuda":
        return "the tensors are on the CPU, and times are taken on a GPU"
    if reason is None and case.bytes == 0:
        return "there is nothing to move"
    return reason


def _time(case: _Case, ran: dict[str, _Ran]) -> dict[str, Speed]:
    functions: dict[str, Callable[[], object]] = {
        "copy": measure.copy_ceiling(case.bytes, case.tensors[0].dtype, case.device)
    }
    functions |= {name: of.function for name, of in ran.items() if of.function is not None}
    timings = measure.interleaved(functions)
    copy_us = timings["copy"].median_us
    host_us = {
        name: measure.host_beside(of.function, timings[name].median_us)
        for name, of in ran.items()
        if of.function is not None
    }
    peak = peak_gb_per_s(_device_name(case.device))

    def regime(name: str) -> Regime | None:
        if peak is None or name not in host_us:
            return None
        device_us = timings[name].median_us
        return find_regime(device_us, case.bytes, peak, copy_us=copy_us, host_us=host_us[name])

    return {
        name: Speed(
            median_us=timing.median_us,
            p20_us=timing.p20_us,
            p80_us=timing.p80_us,
            gb_per_s=case.bytes / timing.median_us / 1e3,
            of_ceiling=None if name == "copy" else copy_us / timing.median_us,
            host_us=host_us.get(name),
            regime=regime(name),
        )
        for name, timing in timings.items()
    }


def _look_at_kernels(case: _Case, arch: str, languages: list[str]) -> dict[str, Kernels]:
    try:
        return kernels_of_calls([case.call()], arch, languages)[0]
    except ResourcesUnavailable as error:
        return {language: Kernels(reason=str(error)) for language in languages}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "CPU"
