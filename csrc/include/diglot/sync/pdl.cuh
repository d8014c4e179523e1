// Programmatic dependent launch (PDL): a kernel starts while the kernel before it in the stream
// ends, so that its blocks are resident when that kernel's results are. It needs compute capability
// 9.0; elsewhere, and in the interpreter, launches follow each other. A launch asks for it by
// Launch::uses_pdl. PTX ISA, "griddepcontrol".
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

// Lets the next kernel start once all blocks have called this or ended, as far as SMs have room.
DIGLOT_DEVICE void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Waits until the kernel before has ended and its writes are visible.
DIGLOT_DEVICE void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

}  // namespace diglot
