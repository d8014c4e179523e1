// Stores of C by TMA, in parts that go through shared memory. `Shape` is a WgmmaShape of
// tensor_cores.cuh.
#pragma once

#include "diglot/mma/matrix.cuh"
#include "diglot/mma/tma.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// The thread's number in its warpgroup, read again at each call. The widest tiles of TF32 leave no
// register that could keep it while they are multiplied.
DIGLOT_DEVICE int warpgroup_thread() {
#if defined(__CUDA_ARCH__)
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
#else
  const int thread = static_cast<int>(threadIdx.x);
#endif
  return thread % kWarpgroupThreads;
}

template <typename T>
DIGLOT_DEVICE uint32_t pack(float first, float second) {
  const T values[] = {convert<T>(first), convert<T>(second)};
  uint32_t word;
  memcpy(&word, values, sizeof(word));
  return word;
}

// Writes 16 columns of a warp's sums to a panel in shared memory. Those of 16 bits go by stmatrix.
template <typename T, typename Shape>
DIGLOT_DEVICE void write_panel(const float* sums, char* panel, int begin) {
  const int thread = warpgroup_thread(), lane = thread % 32;
  const int rows = thread / 32 * 16;
  if constexpr (sizeof(T) == 4) {
    static_assert(!Shape::kIsExchanged);
    // Two neighbours in four chunks of 16 bytes, and those eight rows below. A swizzle is an
    // exclusive or of the chunk's number, and so is a step of two chunks.
    const uint32_t place = Shape::PanelC::offset(rows + lane / 4, lane % 4 * 2);
    DIGLOT_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const uint32_t chunk = (begin / 8 + i / 4) * 32, below = i / 2 % 2 * 8 * 128;
      *reinterpret_cast<Vector<float, 2>*>(panel + (place ^ chunk) + below) = {sums[i],
                                                                               sums[i + 1]};
    }
  } else {
    const uint32_t words[4] = {pack<T>(sums[0], sums[1]), pack<T>(sums[2], sums[3]),
                               pack<T>(sums[4], sums[5]), pack<T>(sums[6], sums[7])};
    const int columns = begin + lane / 16 * 8;
    const uint32_t place = Shape::kIsExchanged
                               ? Shape::PanelC::offset(columns + lane % 8, rows + lane % 16 / 8 * 8)
                               : Shape::PanelC::offset(rows + lane % 16, columns);
    store_matrices<Shape::kIsExchanged>(words, panel + place);
  }
}

// A consumer's rows of a tile on their way through shared memory: it writes a part, and TMA stores
// it while the consumer goes on. Rows of an exchanged tile are columns of C, so their elements are
// transposed on the way.
template <typename T, typename Shape, typename Batch>
DIGLOT_DEVICE void store_by_tma(const float (&sums)[Shape::kSums],
                                char (&panels)[Shape::kPartPanels][Shape::PanelC::kBytes],
                                const TensorMap& c, int barrier, int row, int column,
                                const Batch& batch) {
  const int thread = warpgroup_thread();
  DIGLOT_UNROLL
  for (int first = 0; first < Shape::kPanels; first += Shape::kPartPanels) {
    // The stores before, this tile's or another's, have read the memory.
    if (thread == 0) wait_bulk_groups_read<0>();
    named_barrier_sync(barrier, kWarpgroupThreads);
    DIGLOT_UNROLL
    for (int panel = first; panel < first + Shape::kPartPanels && panel < Shape::kPanels; ++panel) {
      DIGLOT_UNROLL
      for (int begin = 0; begin < Shape::kPanelColumns; begin += 16) {
        write_panel<T, Shape>(sums + (panel * Shape::kPanelColumns + begin) / 2,
                              panels[panel - first], begin);
      }
    }
    fence_async_proxy();  // each thread's writes, before TMA reads them
    named_barrier_sync(barrier, kWarpgroupThreads);
    if (thread != 0) continue;
    for (int panel = first; panel < first + Shape::kPartPanels && panel < Shape::kPanels; ++panel) {
      const int along = column + panel * Shape::kPanelColumns;
      tma_store(c, panels[panel - first],
                {Shape::kIsExchanged ? row : along, Shape::kIsExchanged ? along : row, batch.inner,
                 batch.outer});
    }
    commit_bulk_group();
  }
}

}  // namespace diglot
