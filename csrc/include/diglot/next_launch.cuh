// A launch that begins while the one before it in the stream ends, so that blocks are there when
// its results are. Of compute capability 9.0; launch.cuh starts one. PTX ISA, "griddepcontrol".
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

// Once all blocks have called it or ended, the next launch begins where there is room.
DIGLOT_DEVICE void let_next_launch_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Returns when the launch before has ended, and what it wrote is there.
DIGLOT_DEVICE void wait_for_launch_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

}  // namespace diglot
