// Stores of C by TMA, in parts that go through shared memory. `Shape` is a WgmmaShape of
// tensor_cores.cuh.
#pragma once

#include "diglot/mma/matrix.cuh"
#include "diglot/mma/tma.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/types.cuh"

namespace diglot {

template <typename T>
DIGLOT_DEVICE uint32_t pack(float first, float second) {
  const T values[] = {convert<T>(first), convert<T>(second)};
  uint32_t word;
  memcpy(&word, values, sizeof(word));
  return word;
}

// A consumer's rows of a tile on their way through shared memory: it writes a part, and TMA stores
// it while the consumer goes on. Rows of an exchanged tile are columns of C, so their elements are
// transposed on the way.
template <typename T, typename Shape, typename Batch>
DIGLOT_DEVICE void store_by_tma(const float (&sums)[Shape::kSums],
                                char (&panels)[Shape::kPartPanels][Shape::PanelC::kBytes],
                                const TensorMap& c, int barrier, int row, int column,
                                const Batch& batch) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads, lane = thread % 32;
  DIGLOT_UNROLL
  for (int first = 0; first < Shape::kPanels; first += Shape::kPartPanels) {
    // The stores before, this tile's or another's, have read the memory.
    if (thread == 0) wait_bulk_groups_read<0>();
    named_barrier_sync(barrier, kWarpgroupThreads);
    DIGLOT_UNROLL
    for (int panel = first; panel < first + Shape::kPartPanels && panel < Shape::kPanels; ++panel) {
      DIGLOT_UNROLL
      for (int begin = 0; begin < Shape::kPanelColumns; begin += 16) {
        const float* const from = sums + (panel * Shape::kPanelColumns + begin) / 2;
        const uint32_t words[4] = {pack<T>(from[0], from[1]), pack<T>(from[2], from[3]),
                                   pack<T>(from[4], from[5]), pack<T>(from[6], from[7])};
        const int rows = thread / 32 * 16, columns = begin + lane / 16 * 8;
        const uint32_t place =
            Shape::kIsExchanged
                ? Shape::PanelC::offset(columns + lane % 8, rows + lane % 16 / 8 * 8)
                : Shape::PanelC::offset(rows + lane % 16, columns);
        store_matrices<Shape::kIsExchanged>(words, panels[panel - first] + place);
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
