"""An op's compiled kernels, looked into stage by stage: `diglot inspect`.

It looks at the kernels that a call of the op launches, in both languages. No GPU is needed:
Triton's are compiled ahead of time, and CUDA's read from the built extension.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diglot.files import check_folder, writing
from diglot.names import suggestion, unknown_name
from diglot.reference.specs import find_call
from diglot.tools import cuda_library
from diglot.tools.machine_code import ResourcesUnavailable
from diglot.tools.occupancy import Occupancy, find_limits, occupancy
from diglot.tools.resources import (
    DEFAULT_ARCHITECTURE,
    LANGUAGES,
    TRITON_STAGES,
    Call,
    KernelResources,
    PlanOfRun,
    TensorLike,
    kernels_of_calls,
)

# The stages of a kernel in each language's compiler, in order. "resources" tells of the result.
STAGES = {"cuda": ("ptx", "cubin", "sass"), "triton": TRITON_STAGES}
RESOURCES = "resources"
BINARY = "cubin"  # the one stage that is no text
DEFAULT_SHAPE = (4096, 4096)


@dataclass(frozen=True)
class InspectedKernel:
    """A kernel that a call of an op launches.

    Attributes:
        directions: the passes that launch it: "forward", "backward" or both.
        resources: what it takes, and how it is launched.
        occupancy: how many of its blocks a multiprocessor holds, by these.
        stages: the stages that were asked for, by name; cubin as bytes, the others as text.
    """

    language: str
    directions: tuple[str, ...]
    resources: KernelResources
    occupancy: Occupancy
    stages: Mapping[str, str | bytes]

    @property
    def name(self) -> str:
        """Its name; of a CUDA kernel with the template arguments."""
        return self.resources.name


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes:
        architecture: the GPU's, as it was asked for.
        kernels: those of CUDA C++ first, each language's in the order of their launches.
        reasons: by language, why there is nothing of it; or by language and stage, such as
            "cuda ptx", why that stage of it is not there.
        plans: by language, how each launcher runs.
    """

    op: str
    architecture: str
    kernels: tuple[InspectedKernel, ...]
    reasons: Mapping[str, str]
    plans: Mapping[str, tuple[PlanOfRun, ...]]

    def of(self, language: str) -> tuple[InspectedKernel, ...]:
        """The kernels of one language."""
        return tuple(kernel for kernel in self.kernels if kernel.language == language)


def check_stage(stage: str, languages: Sequence[str]) -> tuple[str, ...]:
    """The languages of these whose compiler has a stage.

    Raises:
        ValueError: none has it.
    """
    having = tuple(of for of in languages if stage in (*STAGES[of], RESOURCES))
    if not having:
        known = "; ".join(f"{of} has {', '.join((*STAGES[of], RESOURCES))}" for of in languages)
        every = dict.fromkeys(of for language in languages for of in STAGES[language])
        raise ValueError(
            f"there is no stage {stage!r}: {known}{suggestion(stage, (*every, RESOURCES))}"
        )
    return having


def calls_of(
    op: str, shape: tuple[int, ...], dtype: torch.dtype, options: Mapping[str, Any]
) -> dict[str, Call]:
    """The call of an op in each of its directions, on contiguous tensors."""
    spec = find_call(op)
    spec.check_options(options)
    if spec.floating_only and not dtype.is_floating_point:
        raise ValueError(f"dtype must be floating-point for {spec.name}, not {dtype}")
    shapes = spec.shapes(shape) if spec.shapes else [shape] * len(spec.inputs)
    name = str(dtype).removeprefix("torch.")
    inputs = tuple(
        TensorLike(name, tuple(of), torch.empty(of, device="meta").stride()) for of in shapes
    )
    return {
        direction: Call(op, inputs, dict(options), direction == "backward")
        for direction in spec.directions
        if direction == "forward" or dtype.is_floating_point
    }


def _why_nothing(op: str, shape: tuple[int, ...], reasons: Mapping[str, str]) -> str:
    """Why there are no kernels: what all languages say alike, such as an op's refusal, once."""
    if not reasons:
        return f"{op} launches no kernel for an input of shape {'x'.join(map(str, shape))}"
    if len(set(reasons.values())) == 1 and len(reasons) > 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{of}: {why}" for of, why in reasons.items())


def _pick(kernels: Sequence[InspectedKernel], wanted: str) -> tuple[InspectedKernel, ...]:
    """Those of a name: whole, without template arguments, or with wildcards, in any case."""
    picked = tuple(
        kernel
        for kernel in kernels
        if wanted in (kernel.name, kernel.name.partition("<")[0])
        or fnmatch.fnmatchcase(kernel.name.lower(), wanted.lower())
    )
    if not picked:
        raise unknown_name("kernel", wanted, dict.fromkeys(kernel.name for kernel in kernels))
    return picked


_CUDA: dict[str, Callable[[str, str], str | bytes]] = {
    "ptx": cuda_library.cuda_ptx,
    "cubin": cuda_library.cuda_cubin,
    "sass": cuda_library.cuda_sass,
}


def _cuda_stages(name: str, architecture: str, stages: Sequence[str]) -> dict[str, str | bytes]:
    return {stage: _CUDA[stage](name, architecture) for stage in stages if stage in _CUDA}


def _triton_stages(compiled: Mapping[str, bytes]) -> dict[str, str | bytes]:
    return {name: of if name == BINARY else of.decode() for name, of in compiled.items()}


def inspect(
    op: str,
    *,
    languages: Sequence[str] = LANGUAGES,
    architecture: str = DEFAULT_ARCHITECTURE,
    stages: Sequence[str] = (),
    kernel: str | None = None,
    shape: tuple[int, ...] = DEFAULT_SHAPE,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Inspection:
    """Looks into the kernels that an op launches, forward and backward, on contiguous tensors.

    Args:
        languages: of "cuda" and "triton".
        architecture: the GPU's, such as "sm_90". Of CUDA's kernels that is the code that it runs:
            that of "sm_90a" too.
        stages: those wanted, of `STAGES`; a language has those of them that its compiler has.
        kernel: only these kernels: a name, with template arguments or without, or with wildcards.
        shape: of the op's first input; others have the shapes that go with it.

    Returns:
        The kernels. The `reasons` say why a language has none, such as that its compiler lacks.

    Raises:
        ValueError: an unknown op, option, architecture, stage or kernel, or a dtype that the op
            does not take.
        ResourcesUnavailable: no language's kernels can be looked at, or the op refuses the call:
            the message says why.
    """
    calls = calls_of(op, shape, dtype, options)
    find_limits(architecture)
    for stage in stages:
        check_stage(stage, languages)
    reasons: dict[str, str] = {}
    # What the extension does not hold is known before anything is compiled.
    if "cuda" in languages:
        try:
            cuda_library.code_that_runs(architecture)
        except ResourcesUnavailable as error:
            reasons["cuda"] = str(error)
    if "cuda" in languages and "ptx" in stages:
        try:
            cuda_library.ptx_that_runs(architecture)
        except ResourcesUnavailable as error:
            is_all = set(stages) & {*STAGES["cuda"]} == {"ptx"}
            reasons.setdefault("cuda" if is_all else "cuda ptx", str(error))
    asked = [of for of in languages if of not in reasons]
    wanted = [stage for stage in stages if f"cuda {stage}" not in reasons]
    kept = tuple(of for of in TRITON_STAGES if of in stages)
    answers = kernels_of_calls(list(calls.values()), architecture, asked, kept) if asked else []
    found: list[InspectedKernel] = []
    for language in asked:
        launched: dict[KernelResources, tuple[list[str], Mapping[str, bytes]]] = {}
        for direction, answer in zip(calls, answers, strict=True):
            kernels = answer[language]
            if kernels.reason is not None:
                reasons[language] = kernels.reason
            for index, resources in enumerate(kernels.kernels):
                compiled = kernels.stages[index] if kernels.stages else {}
                directions, _ = launched.setdefault(resources, ([], compiled))
                if direction not in directions:
                    directions.append(direction)
        for resources, (directions, compiled) in launched.items():
            assert resources.threads is not None
            found.append(
                InspectedKernel(
                    language,
                    tuple(directions),
                    resources,
                    occupancy(
                        architecture,
                        resources.threads,
                        resources.registers,
                        resources.shared_bytes,
                    ),
                    _cuda_stages(resources.name, architecture, wanted)
                    if language == "cuda"
                    else _triton_stages(compiled),
                )
            )
    if not found:
        raise ResourcesUnavailable(_why_nothing(op, shape, reasons))
    picked = tuple(found) if kernel is None else _pick(found, kernel)
    plans = {
        language: tuple([plan for answer in answers for plan in answer[language].plans])
        for language in asked
    }
    return Inspection(op, architecture, picked, reasons, plans)


def file_names(inspection: Inspection) -> dict[str, tuple[InspectedKernel, str]]:
    """By name of a file for each kernel and stage, the two.

    Of CUDA's names the template arguments are kept, and what no name of a file should have is not.
    """
    names: dict[str, tuple[InspectedKernel, str]] = {}
    for kernel in inspection.kernels:
        plain = re.sub(r"[^\w.]+", "_", kernel.name).strip("_")
        base, number = f"{kernel.language}.{plain}", 1
        while any(name.startswith(f"{base}.") for name in names):
            number += 1
            base = f"{kernel.language}.{plain}-{number}"
        names |= {f"{base}.{stage}": (kernel, stage) for stage in kernel.stages}
    return names


def save(inspection: Inspection, folder: str | Path, force: bool = False) -> list[Path]:
    """Writes every stage that was asked for, a file for each kernel and stage.

    Args:
        folder: made if it is missing.
        force: write into a folder that has files.

    Raises:
        ValueError: the folder cannot be written, or has files and `force` is not set.
    """
    check_folder(folder, force, makes_parents=False)
    written = []
    with writing(folder):
        Path(folder).mkdir(exist_ok=True)
        for name, (kernel, stage) in file_names(inspection).items():
            path, content = Path(folder) / name, kernel.stages[stage]
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            written.append(path)
    return written
