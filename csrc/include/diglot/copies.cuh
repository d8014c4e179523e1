// Copies of bytes in rows, several in one launch: its start takes less of the host's time than that
// of a copy by the CUDA runtime.
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

// Bytes in rows, which lie at equal distances.
struct Rows {
  char* to;
  const char* from;
  int64_t bytes, count, to_pitch, from_pitch;
};

constexpr int kMostCopies = 16, kCopyThreads = 256;

struct Copies {
  Rows each[kMostCopies];
};

// Of less than 2 GiB in all.
template <typename Access>
DIGLOT_DEVICE void copy_by(const Rows& rows) {
  const auto accesses = static_cast<uint32_t>(rows.bytes / sizeof(Access));
  const uint32_t every = accesses * static_cast<uint32_t>(rows.count);
  for (uint32_t i = blockIdx.x * kCopyThreads + threadIdx.x; i < every;
       i += gridDim.x * kCopyThreads) {
    const uint32_t row = i / accesses, place = i % accesses;
    reinterpret_cast<Access*>(rows.to + row * rows.to_pitch)[place] =
        reinterpret_cast<const Access*>(rows.from + row * rows.from_pitch)[place];
  }
}

// Block y copies rows y. It makes the widest accesses that lie at multiples of their size.
__global__ void __launch_bounds__(kCopyThreads) copy_rows(const __grid_constant__ Copies copies) {
  const Rows& rows = copies.each[blockIdx.y];
  const auto numbers = reinterpret_cast<uintptr_t>(rows.to) |
                       reinterpret_cast<uintptr_t>(rows.from) |
                       static_cast<uintptr_t>(rows.bytes | rows.to_pitch | rows.from_pitch);
  if (numbers % sizeof(uint4) == 0) return copy_by<uint4>(rows);
  if (numbers % sizeof(uint32_t) == 0) return copy_by<uint32_t>(rows);
  copy_by<char>(rows);
}

}  // namespace diglot
