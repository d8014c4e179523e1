"""What compiled kernels are: registers, spills, shared memory, widest accesses.

CUDA kernels are read from the built library, Triton's are compiled ahead of time; no GPU is needed
for either.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from diglot.tools.machine_code import (
    ROLES,
    ResourcesUnavailable,
    Usage,
    check_architecture,
    demangle,
    dump,
    read_listing,
    read_sass,
    read_usage,
)

DEFAULT_ARCHITECTURE = "sm_90"


@dataclass(frozen=True)
class KernelResources:
    """A compiled kernel, and of its launch what its code does not tell.

    Attributes:
        name: the function's name; for CUDA with its template arguments.
        architecture: what it was compiled for, such as "sm_90a".
        registers: per thread.
        spill_bytes: bytes per thread that its code stores to local memory: spilled registers, and
            arrays that did not fit in registers.
        stack_bytes: stack frame per thread.
        shared_bytes: shared memory per block, static and dynamic.
        load_bytes: width of the widest load from global memory; None without a load.
        store_bytes: width of the widest store to global memory; None without a store.
        loads: the loads from global memory in its code: pairs of a width in bytes and how many
            instructions have it, widest first.
        stores: likewise, of the stores.
        instructions: the numbers of those that say much of a kernel: pairs of a name and a number,
            such as ("LDG.128", 2). Names of accesses have their width in bits.
        dynamic_shared_bytes: of the shared memory, what the launch adds.
        threads: of a block; None where no launch was looked at.
        cluster_blocks: blocks of a cluster; 1 without clusters.
        products: the instructions of tensor cores in its code: pairs of a name with shape and
            types, such as ("HGMMA.64x128x16.F32.BF16", 8), and a number.
    """

    name: str
    architecture: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    load_bytes: int | None
    store_bytes: int | None
    loads: tuple[tuple[int, int], ...] = ()
    stores: tuple[tuple[int, int], ...] = ()
    instructions: tuple[tuple[str, int], ...] = ()
    dynamic_shared_bytes: int = 0
    threads: int | None = None
    cluster_blocks: int = 1
    products: tuple[tuple[str, int], ...] = ()

    @property
    def is_warp_specialised(self) -> bool:
        """Whether its warpgroups have roles and share out the registers: loading, multiplying."""
        return ROLES in dict(self.instructions)

    @property
    def form(self) -> str:
        """How its code loads and multiplies tiles, in one line."""
        counts = dict(self.instructions)
        warps = "" if self.threads is None else f", {self.threads // 32} warps"
        loads, stores = counts.get("UTMALDG", 0), counts.get("UTMASTG", 0)
        return "; ".join(
            [
                ("" if self.is_warp_specialised else "not ") + f"warp-specialised{warps}",
                f"descriptor loads {loads}, stores {stores}",
                " and ".join(f"{count} {name}" for name, count in self.products)
                or "no tensor cores",
                f"{self.registers} registers, {self.spill_bytes} bytes spilled",
            ]
        )

    def launched(
        self, threads: int, dynamic_bytes: int, cluster_blocks: int = 1
    ) -> KernelResources:
        """The same kernel, launched so."""
        return replace(
            self,
            shared_bytes=self.shared_bytes - self.dynamic_shared_bytes + dynamic_bytes,
            dynamic_shared_bytes=dynamic_bytes,
            threads=threads,
            cluster_blocks=cluster_blocks,
        )


def join(usage: Iterable[Usage], sass: str, architecture: str) -> dict[str, KernelResources]:
    """Kernels by name, of the two things that cuobjdump tells of them."""
    codes = read_sass(sass)
    kernels = [
        KernelResources(
            name=demangle(entry.symbol),
            architecture=architecture,
            registers=entry.registers,
            stack_bytes=entry.stack_bytes,
            shared_bytes=entry.own_shared_bytes(architecture),
            load_bytes=max((width for width, _ in code.loads), default=None),
            store_bytes=max((width for width, _ in code.stores), default=None),
            **vars(code),
        )
        for entry in usage
        for code in [codes[entry.symbol]]
    ]
    return {kernel.name: kernel for kernel in kernels}


@dataclass(frozen=True)
class CompiledKernel:
    """A Triton kernel, and what its compiler made of it on the way.

    Attributes:
        stages: by the names of `TRITON_STAGES`.
    """

    resources: KernelResources
    stages: Mapping[str, bytes]


# What Triton's compiler makes, in order: TTIR, TTGIR, LLVM IR, PTX and machine code; and the
# instructions of the latter, one a line.
TRITON_STAGES = ("ttir", "ttgir", "llir", "ptx", "cubin", "sass")


def compile_stages(specialization: Any, architecture: str = DEFAULT_ARCHITECTURE) -> CompiledKernel:
    """Compiles a Triton kernel ahead of time, in this process, and reads what came out.

    Args:
        specialization: a `diglot.triton_ops.launch.Specialization`.

    Raises:
        RuntimeError: Triton interprets in this process; `kernels_of_calls` uses another.
    """
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    if knobs.runtime.interpret:
        raise RuntimeError("Triton cannot compile in a process in which it interprets")
    target = GPUTarget("cuda", check_architecture(architecture), 32)
    return read_compiled(specialization.compile(target))


def read_compiled(compiled: Any) -> CompiledKernel:
    """Reads what Triton compiled: a `triton.compiler.CompiledKernel`."""
    kept = {stage: compiled.asm[stage] for stage in TRITON_STAGES[:-1]}
    stages = {name: of.encode() if isinstance(of, str) else of for name, of in kept.items()}
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(stages["cubin"])
        usage = read_usage(dump("--dump-resource-usage", str(cubin)))
        sass = dump("-sass", str(cubin))
    stages["sass"] = "".join(read_listing(sass).values()).encode()
    # Not as cuobjdump calls it: one that is older than the ptxas in use leaves out the "a" of
    # sm_90a. Triton 3.6 has 12.8, and PyTorch's compiler has Triton use a ptxas of 13.0.
    (target,) = re.findall(r"^\.target (sm_\w+)", stages["ptx"].decode(), re.MULTILINE)
    (kernel,) = join(usage, sass, target).values()
    # A Triton kernel's shared memory is dynamic: the cubin does not tell its size.
    metadata = compiled.metadata
    launched = kernel.launched(32 * int(metadata.num_warps), int(metadata.shared))
    return CompiledKernel(launched, stages)


def compile_triton(
    specializations: Sequence[Any], architecture: str = DEFAULT_ARCHITECTURE
) -> list[KernelResources]:
    """The resources alone of what `compile_stages` makes of several."""
    return [compile_stages(of, architecture).resources for of in specializations]


@dataclass(frozen=True)
class TensorLike:
    """A tensor without its data: what a launcher looks at to choose a kernel.

    Attributes:
        dtype: the dtype's name, such as "bfloat16".
        stride: strides, in elements.
        misalignment: elements from the multiple of 16 bytes below to the first element.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    misalignment: int = 0

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorLike:
        """The likeness of a tensor."""
        start = 0 if tensor.is_meta else tensor.data_ptr() % 16 // tensor.element_size()
        name = str(tensor.dtype).removeprefix("torch.")
        return TensorLike(name, tuple(tensor.shape), tensor.stride(), start)

    def tensor(self) -> torch.Tensor:
        """An uninitialised tensor like it, on the CPU. Nothing touches its memory."""
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        dtype = getattr(torch, self.dtype)
        elements = max(extent, 0) + self.misalignment
        return torch.empty(elements, dtype=dtype).as_strided(
            self.shape, self.stride, self.misalignment
        )


@dataclass(frozen=True)
class Call:
    """A call of an op whose kernels are asked for.

    Attributes:
        inputs: its inputs: tensors without data, or numbers.
        backward: whether the backward pass is meant, instead of the forward one.
    """

    op: str
    inputs: tuple[TensorLike | float, ...]
    options: dict[str, Any]
    backward: bool = False


@dataclass(frozen=True)
class PlanOfRun:
    """How a launcher would run.

    Attributes:
        launcher: the direction, such as "gelu_forward".
        scratch: bytes, leading bytes that are zeroed, and the lifetime of the memory that it needs;
            None if it needs none.
        tunables: the measured numbers that decided, by name.
    """

    launcher: str
    variant: str
    scratch: tuple[int, int, str] | None
    tunables: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels that a call would launch, in order; or why they cannot be told.

    `stages` are those of each kernel that were asked for, in the same order, of Triton's kernels.
    `plans` are those of the launchers that the call runs.
    """

    kernels: tuple[KernelResources, ...] = ()
    reason: str | None = None
    stages: tuple[Mapping[str, bytes], ...] = ()
    plans: tuple[PlanOfRun, ...] = ()


LANGUAGES = ("cuda", "triton")


def kernels_of_calls(
    calls: Sequence[Call],
    architecture: str = DEFAULT_ARCHITECTURE,
    languages: Sequence[str] = LANGUAGES,
    stages: Sequence[str] = (),
) -> list[dict[str, Kernels]]:
    """The kernels that calls would launch on a GPU, by language.

    Another process makes them out: there launchers plan instead of launching, and Triton
    compiles, which it cannot where it interprets.

    Args:
        stages: of `TRITON_STAGES`, those that are wanted of Triton's kernels.

    Raises:
        ValueError: no such architecture.
        ResourcesUnavailable: the other process failed as a whole.
    """
    check_architecture(architecture)
    request = calls, architecture, languages, stages
    leave_out = {"DIGLOT_INTERPRET", "TRITON_INTERPRET", "DIGLOT_BACKEND"}
    environment = {name: value for name, value in os.environ.items() if name not in leave_out}
    done = subprocess.run(
        [sys.executable, "-m", "diglot.tools.recording"],
        input=pickle.dumps(request),
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {done.returncode}"
        raise ResourcesUnavailable(f"looking at the kernels failed: {last}")
    return pickle.loads(done.stdout)
