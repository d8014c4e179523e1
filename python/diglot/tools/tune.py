"""Tuning: the plans of a call are measured, and their times kept for calls like it.

Each launch of a call is tuned on its own. Its plans are captured in CUDA graphs and timed in turns,
with a cold L2 cache, as the benchmarks do. A plan whose results differ is no plan.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diglot.backends import store
from diglot.backends.choosing import Choice, forget_stores, use_plans
from diglot.backends.plans import Device, plan_runs
from diglot.backends.registry import cuda_module, triton_interprets
from diglot.backends.runs import LastRun, observe_runs, plan, run
from diglot.backends.store import EXACT_ONLY, Entry, Numbers, Problem, plan_name
from diglot.backends.tunables import short_name
from diglot.backends.tuning import Candidate, candidate_plans
from diglot.tools import measure
from diglot.tools.op_sources import sources_hash

BUDGET_MS = 15  # of device time, for each plan
ROUNDS = 2
# Roundings of the largest value: two plans' results may differ by these.
ALLOWED = 8
# The terms of a product's sum for which one more rounding of float32 is allowed: tensor cores cut
# sums, each plan elsewhere.
CUT_TERMS = 16


@dataclass
class Tuned:
    """What tuning found of one launch.

    Attributes:
        times_us: medians by the plan's name; "" is the planner's own choice.
        skipped: why plans have no time, by name.
    """

    problem: Problem
    times_us: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The name of the plan that is taken from now on."""
        timings = {name: store.Timing(us, 0) for name, us in self.times_us.items()}
        return Entry(self.problem, timings).best


def tune(
    op: Callable[..., Any],
    *inputs: Any,
    backends: Sequence[str] = ("cuda", "triton"),
    folder: Path | str | None = None,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Tuned]:
    """Measures the plans of a call, and keeps their times for similar calls.

    It tunes the backward pass too if an input requires grad.

    Args:
        op: an op, such as `diglot.softmax`.
        inputs: its tensors, on a GPU.
        options: its other arguments, without `backend`.
        backends: the backends to tune.
        folder: the folder of files of times; by default `$DIGLOT_CONFIGS`, or else the user's
            cache.
        tell: is called with each next step, in words; None: nobody is told.

    Returns:
        The times of each launch that has several plans.

    Raises:
        RuntimeError: there is no GPU, kernels are interpreted, or a CUDA graph is being captured.
    """

    def call_on(backend: str) -> None:
        outputs = op(*inputs, backend=backend, **options)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        leaves = [i for i in inputs if isinstance(i, Tensor) and i.requires_grad]
        if leaves:
            recorded = [output for output in outputs if output.requires_grad]
            torch.autograd.grad(recorded, leaves, [torch.randn_like(o) for o in recorded])

    tell = tell or (lambda _: None)
    calls = (functools.partial(call_on, backend) for backend in backends)
    return [tuned for call in calls for tuned in tune_call(call, folder=folder, tell=tell)]


def tune_call(
    call: Callable[[], Any],
    *,
    folder: Path | str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Tuned]:
    """Tunes every launch that a function makes, as `tune` does.

    In a process group rank 0 measures, and the others wait for it and read what it wrote.
    """
    measure.check()
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("nothing is tuned while a CUDA graph is captured")
    with _rank_0_first() as is_first:
        found = _tune_call(call, folder, tell) if is_first else []
    forget_stores()
    return found


@contextlib.contextmanager
def _rank_0_first() -> Iterator[bool]:
    """Context manager: whether this process is to measure; the others go on after it has."""
    try:
        yield _is_first_rank()
    finally:
        if _has_group():
            torch.distributed.barrier()


def launches_of(call: Callable[[], Any]) -> Iterator[tuple[Problem, LastRun, tuple[Any, ...]]]:
    """The launches of a call that have plans to choose among, each problem once."""
    launched: list[tuple[LastRun, tuple[Any, ...]]] = []
    with use_plans("model"), observe_runs(lambda record, args: launched.append((record, args))):
        call()
    seen = set()
    for record, arguments in launched:
        if record.backend not in ("cuda", "triton"):
            continue
        with use_plans("model"):
            choices = plan(record.backend, record.op, record.launcher, *arguments).choices
        if choices and choices[0].problem not in seen:
            seen.add(choices[0].problem)
            yield choices[0].problem, record, arguments


def compile_call(call: Callable[[], Any], device: Device | None = None) -> None:
    """Compiles the plans of a call's launches, so that Triton's cache on disk has them.

    Nothing runs. Triton of the same version takes them from there, on another machine too.

    Args:
        call: a function that makes it. Its tensors may be on any device, if `device` is given.
        device: the GPU that is planned for; by default the current one.
    """
    with use_plans("model"), plan_runs(device) as runs:
        call()
        planned = [r for r in runs if r.backend == "triton"]
        plans = [candidate_plans("triton", r.op, r.launcher, *r.arguments) for r in planned]
    _compile(itertools.chain(*plans), device)


def _compile(candidates: Iterable[Candidate], device: Device | None = None) -> None:
    """Compiles Triton's plans by several threads: half of the time is not Python's."""
    from triton.backends.compiler import GPUTarget

    major, minor = torch.cuda.get_device_capability() if device is None else (0, 0)
    target = GPUTarget("cuda", device.architecture if device else 10 * major + minor, 32)

    def compile_launch(launch: Any) -> None:
        with contextlib.suppress(Exception):  # the measurement will say why
            launch.specialization.compile(target)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for candidate in candidates:
            for launch in candidate.plan.launches:
                pool.submit(compile_launch, launch)


def _tune_call(
    call: Callable[[], Any], folder: Path | str | None, tell: Callable[[str], None]
) -> list[Tuned]:
    found: list[Tuned] = []
    for problem, record, arguments in launches_of(call):
        tuned = tune_launch(problem, record, arguments, tell)
        if not tuned.times_us:
            raise RuntimeError(f"{record.launcher}: no plan runs: {tuned.skipped}")
        found.append(tuned)
        try:
            _keep(tuned, Path(folder) if folder is not None else store.user_folder())
        except (OSError, ValueError) as error:  # the caller still gets the times
            warnings.warn(f"diglot.tune keeps no times: {error}", stacklevel=2)
    return found


def tune_launch(
    problem: Problem,
    record: LastRun,
    arguments: tuple[Any, ...],
    tell: Callable[[str], None] = lambda _: None,
    also: Sequence[Numbers] = (),
    rounds: int = ROUNDS,
) -> Tuned:
    """Measures the plans of one launch, whose outputs hold its results before and after.

    Args:
        also: numbers of further plans that are to have a time.
        rounds: after the first, plans differ in one more tunable from the best so far.
    """
    tuned = Tuned(problem)
    outputs = _outputs(record.launcher, arguments)
    expected = [output.clone() for output in outputs]
    device = outputs[0].device
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            _measure(tuned, record, arguments, outputs, expected, tell, also, rounds)
    finally:
        for output, values in zip(outputs, expected, strict=True):
            output.copy_(values)
    return tuned


def _measure(
    tuned: Tuned,
    record: LastRun,
    arguments: tuple[Any, ...],
    outputs: Sequence[Tensor],
    expected: Sequence[Tensor],
    tell: Callable[[str], None],
    also: Sequence[Numbers],
    rounds: int,
) -> None:
    problem = tuned.problem
    name = f"{problem.launcher} [{problem.backend}] {'x'.join(map(str, problem.shape))}"
    launch = record.backend, record.op, record.launcher, *arguments
    call = functools.partial(run, *launch)
    best: Candidate | None = None
    own: tuple[Any, ...] = ()  # the order of the planner's own plan, and its results
    for number in range(rounds):
        start = {} if best is None else best.numbers
        candidates = candidate_plans(*launch, start=start)
        if number == 0:
            candidates += [_candidate(launch, numbers) for numbers in also]
        tried = tuned.times_us.keys() | tuned.skipped.keys()
        new = [c for c in candidates if plan_name(c.numbers) not in tried]
        if number > 0 and not new:
            break
        tell(f"{name}: {len(new)} plans")
        if record.backend == "triton" and not triton_interprets():
            _compile(new)
        graphs: dict[str, Callable[[], object]] = {}
        known = [c for c in (best, Candidate(candidates[0].plan, {})) if c is not None]
        for candidate in [*known, *new]:
            key = plan_name(candidate.numbers)
            if key in graphs or key in tuned.skipped:
                continue
            try:
                with use_plans(candidate.numbers):
                    graph = measure.captured(call)
                for output in outputs:
                    output.fill_(torch.nan if output.is_floating_point() else 0)
                graph()
                _check(outputs, expected, problem.shape[2] if problem.op in EXACT_ONLY else 0)
                if not own:
                    own = candidate.plan.order, [output.clone() for output in outputs]
                elif candidate.plan.order == own[0] and not all(map(_equal, outputs, own[1])):
                    raise ValueError("its results differ, though it sums in the same order")
                graphs[key] = graph
            except torch.AcceleratorError:  # after which nothing runs
                raise
            except Exception as error:  # Triton's OutOfResources among them
                tuned.skipped[key] = (str(error).splitlines() or [type(error).__name__])[0]
        times = measure.interleaved(graphs, budget_ms=BUDGET_MS)
        tuned.times_us |= {key: timing.median_us for key, timing in times.items()}
        if not tuned.times_us:
            break
        found = next((c for c in candidates if plan_name(c.numbers) == tuned.best), best)
        if found is best:
            break
        best = found


def _candidate(launch: tuple[Any, ...], numbers: Numbers) -> Candidate:
    """The plan that a launch has with these numbers."""
    with use_plans(numbers):
        return Candidate(plan(*launch), numbers)


def _outputs(launcher: str, arguments: tuple[Any, ...]) -> list[Tensor]:
    """The tensors that a launcher writes, by its schema; of one without, the last."""
    module, _ = cuda_module()
    schema = getattr(module, "schemas", {}).get(launcher)
    given = [a for a in arguments if a is None or isinstance(a, Tensor)]
    if schema is None:
        return [a for a in given if a is not None][-1:]
    *parameters, _ = torch._C.parse_schema(f"{launcher}{schema}").arguments  # the last is scratch
    tensors = [p for p in parameters if str(p.type) in ("Tensor", "Optional[Tensor]")]
    written = [p.alias_info is not None and p.alias_info.is_write for p in tensors]
    return [a for a, is_out in zip(given, written, strict=True) if is_out and a is not None]


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _check(outputs: Sequence[Tensor], expected: Sequence[Tensor], terms: int = 0) -> None:
    """Raises ValueError where results differ by more than sums of some terms may."""
    cut = terms / CUT_TERMS * torch.finfo(torch.float32).eps
    for output, right in zip(outputs, expected, strict=True):
        if not output.is_floating_point() or not output.numel():
            continue
        is_double = output.dtype == torch.float64  # which tensor cores do not cut
        roundings = ALLOWED * torch.finfo(output.dtype).eps + (0 if is_double else cut)
        allowed = roundings * right.abs().amax().double()
        error = (output.double() - right.double()).abs().amax()
        if not error <= allowed:  # NaN too
            raise ValueError(f"its results differ by {error.item():.3g}")


class _Thread(threading.local):
    is_tuning = False


_thread = _Thread()
_seen: set[Any] = set()


def tune_if_new(record: LastRun, arguments: tuple[Any, ...]) -> None:
    """Tunes a launch that has just run, unless its problem was measured, here or before.

    Where plans are not chosen by measured times, earlier measurements are not known.

    With DIGLOT_TUNE=1 this follows every launch. In a process group rank 0 alone tunes.
    """
    if _thread.is_tuning or record.interpreted or record.backend not in ("cuda", "triton"):
        return
    if torch.cuda.is_current_stream_capturing() or not _is_first_rank():
        return
    _thread.is_tuning = True
    try:
        choices = plan(record.backend, record.op, record.launcher, *arguments).choices
        if not choices or choices[0].problem in _seen or choices[0].source == "exact":
            return
        _seen.add(choices[0].problem)
        tuned = tune_launch(choices[0].problem, record, arguments)
        if tuned.times_us:
            _keep(tuned, store.user_folder())
            forget_stores()
    except torch.AcceleratorError:  # after which nothing runs
        raise
    except Exception as error:  # the call itself has succeeded
        warnings.warn(f"DIGLOT_TUNE: {record.launcher} is not tuned: {error}", stacklevel=2)
    finally:
        _thread.is_tuning = False


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_first_rank() -> bool:
    return not _has_group() or torch.distributed.get_rank() == 0


def _keep(tuned: Tuned, folder: Path) -> None:
    gpu = short_name(gpu_name())
    with store.updating(tuned.problem.op, folder / tuned.problem.op / f"{gpu}.json") as kept:
        kept.add(tuned.problem, tuned.times_us, run_facts(tuned.problem.backend, tuned.problem.op))


def gpu_name() -> str:
    """The current GPU's."""
    return str(torch.cuda.get_device_name())


@functools.cache
def run_facts(backend: str, op: str) -> Mapping[str, Any]:
    """What a file says of a run of an op: date, GPU, versions and sources."""
    from diglot.bench.evidence import versions

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "gpu": gpu_name(),
        **{name: versions()[name] for name in ("driver", "torch", "triton", "diglot")},
        "sources": sources_hash(backend, op),
    }


def choices_of(call: Callable[[], Any]) -> list[Choice]:
    """How the plans of a call's launches are chosen. Nothing is launched."""
    with plan_runs() as runs:
        call()
    return [choice for each in runs for choice in each.plan.choices]
