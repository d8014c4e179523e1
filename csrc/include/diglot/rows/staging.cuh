// The parameters of a map, such as a norm's weight and bias, staged in shared memory: by
// asynchronous copies (cp.async), behind the slots of tiles.
#pragma once

#include "diglot/rows/operation.cuh"
#include "diglot/rows/place.cuh"

namespace diglot {

// What the map gets where no parameters can be staged.
struct NothingStaged {};

// Whether the staged parameters of all of an SM's blocks fit in the shared memory of some device.
template <typename Shape, typename Operation, typename I>
constexpr bool may_stage_params() {
  if constexpr (Operation::kStagesParams && Shape::kTeam == Team::kCluster && !Shape::kIsPeeled) {
    constexpr int kElements = Shape::kThreads * Shape::kAccesses * Shape::template kElements<I>;
    return Operation::kStagedBytes * kElements * Shape::kBlocks < 228 * 1024;
  } else {
    return false;
  }
}

// Copies this thread's elements of a parameter array to shared memory, `offset` bytes from its
// start, and advances the offset. element(a): the number of the first element of access a.
// exists(a): whether it exists. `first`: the number of the block's first element in the array.
template <typename Shape, typename I, typename W, typename Element, typename Exists>
DIGLOT_DEVICE const W* stage_array(const W* array, int& offset, int64_t first, Element element,
                                   Exists exists) {
  if (array == nullptr) return nullptr;
  constexpr int kElements = Shape::template kElements<I>;
  constexpr int kPart = kAccessBytes / static_cast<int>(sizeof(W));
  extern __shared__ uint4 staged_accesses[];
  W* const staged = reinterpret_cast<W*>(staged_accesses + offset / kAccessBytes);
  const int threads = static_cast<int>(blockDim.x);
  offset += threads * Shape::kAccesses * kElements * static_cast<int>(sizeof(W));
  DIGLOT_UNROLL
  for (int a = 0; a < Shape::kAccesses; ++a) {
    // Absent ones are not copied: all blocks would read the same address at once.
    if (!exists(a)) break;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; i += kPart) {
      copy_async(reinterpret_cast<uint4*>(staged + element(a) + i), array + first + element(a) + i);
    }
  }
  return staged;
}

}  // namespace diglot
