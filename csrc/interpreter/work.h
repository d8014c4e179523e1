// What kernels have asked of TMA and the tensor cores since the process began, for programs that
// compare kernels. A thread's own accesses and arithmetic are not counted.
#pragma once

#include <cstdint>

namespace diglot::interpreter {

struct Work {
  std::uint64_t loaded_bytes;   // from global memory; once for a load to several blocks
  std::uint64_t stored_bytes;   // to global memory
  std::uint64_t multiply_adds;  // of wgmma
};

Work work();

// Adds what one operation asks for.
void add_work(const Work& asked);

}  // namespace diglot::interpreter
