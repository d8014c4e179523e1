// Stores of C by TMA, in parts that go through shared memory. `Shape` is a WgmmaShape of
// tensor_cores.cuh.
#pragma once

#include <type_traits>

#include "diglot/mma/matrix.cuh"
#include "diglot/mma/tma.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/products/epilogue.cuh"
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

// Parts of a consumer's rows of a tile, in turn, on their way through shared memory.
template <typename Shape>
struct TmaParts {
  char (&panels)[Shape::kParts][Shape::kPartPanels][Shape::PanelC::kBytes];
  int barrier;   // of the consumer
  int next = 0;  // the part that no store reads

  DIGLOT_DEVICE void advance() { next = next + 1 == Shape::kParts ? 0 : next + 1; }
};

// Writes a part of a consumer's sums. Rows of an exchanged tile are columns of C, so their elements
// are transposed on the way.
template <typename T, typename Shape, int kSums>
DIGLOT_DEVICE void write_part(const float (&sums)[kSums], TmaParts<Shape>& parts) {
  auto& panels = parts.panels[parts.next];
  DIGLOT_UNROLL
  for (int panel = 0; panel < 2 * kSums / Shape::kPanelColumns; ++panel) {
    DIGLOT_UNROLL
    for (int begin = 0; begin < Shape::kPanelColumns; begin += 16) {
      write_panel<T, Shape>(sums + (panel * Shape::kPanelColumns + begin) / 2, panels[panel],
                            begin);
    }
  }
}

// Has TMA store a part that was written, of kSums sums, while the consumer goes on. The part is
// that of the tile from `row` and `column`.
template <typename T, typename Shape, int kSums, typename Batch>
DIGLOT_DEVICE void store_part(TmaParts<Shape>& parts, const TensorMap& c, int row, int column,
                              const Batch& batch) {
  const int thread = warpgroup_thread();
  auto& panels = parts.panels[parts.next];
  fence_async_proxy();  // each thread's writes, before TMA reads them
  // After the barrier the next part may be overwritten: TMA has read it.
  if (thread == 0) wait_bulk_groups_read<Shape::kParts - 2>();
  named_barrier_sync(parts.barrier, kWarpgroupThreads);
  parts.advance();
  if (thread != 0) return;
  DIGLOT_UNROLL
  for (int panel = 0; panel < 2 * kSums / Shape::kPanelColumns; ++panel) {
    const int along = column + panel * Shape::kPanelColumns;
    tma_store(c, panels[panel],
              {Shape::kIsExchanged ? row : along, Shape::kIsExchanged ? along : row, batch.inner,
               batch.outer});
  }
  commit_bulk_group();
}

// The same by threads, where TMA cannot store C: in a loop, which is little code. Neighbours copy
// neighbours.
template <typename T, typename Shape, int kSums>
DIGLOT_DEVICE void copy_part(TmaParts<Shape>& parts, const Epilogue<T>& epilogue, bool is_before,
                             int row, int column) {
  constexpr int kPanels = 2 * kSums / Shape::kPanelColumns, kLines = Shape::kPanelLines;
  const int m = static_cast<int>(epilogue.m), n = static_cast<int>(epilogue.n);
  const int first_line = Shape::kIsExchanged ? column : row;
  const int first_column = Shape::kIsExchanged ? row : column;
  const auto& panels = parts.panels[parts.next];
  T* const to = is_before ? epilogue.before : epilogue.c;
  named_barrier_sync(parts.barrier, kWarpgroupThreads);
  parts.advance();
  DIGLOT_NO_UNROLL
  for (int i = warpgroup_thread(); i < kPanels * kLines * Shape::kPanel; i += kWarpgroupThreads) {
    const int panel = i / (kLines * Shape::kPanel), at = i % Shape::kPanel;
    const int line = i / Shape::kPanel % kLines;
    const int to_line = first_line + line, to_column = first_column + panel * Shape::kPanel + at;
    if (to_line >= m || to_column >= n) continue;
    to[to_line * epilogue.strides.row + to_column * epilogue.strides.column] =
        *reinterpret_cast<const T*>(panels[panel] + Shape::PanelC::offset(line, at));
  }
}

// Calls visit(sums, column) for each part of a consumer's sums, with the column of the tile, a
// constant, where the part begins.
template <typename Shape, int kFirst = 0, typename Visit>
DIGLOT_DEVICE void for_each_part(float (&sums)[Shape::kSums], Visit visit) {
  constexpr int kLeft = Shape::kPanels - kFirst;
  constexpr int kPanels = kLeft < Shape::kPartPanels ? kLeft : Shape::kPartPanels;
  constexpr int kColumn = kFirst * Shape::kPanelColumns;
  constexpr int kPartSums = kPanels * Shape::kPanelColumns / 2;
  visit(reinterpret_cast<float (&)[kPartSums]>(sums[kColumn / 2]),
        std::integral_constant<int, kColumn>{});
  if constexpr (kPanels < kLeft) for_each_part<Shape, kFirst + kPanels>(sums, visit);
}

// The same by a loop, where parts have equal sizes: their code is there once, and a small product
// fetches less of it. The sums of the next part move to the front, where the code finds them.
template <typename Shape, typename Visit>
DIGLOT_DEVICE void for_each_part_in_loop(float (&sums)[Shape::kSums], Visit visit) {
  constexpr int kColumns = Shape::kPartPanels * Shape::kPanelColumns, kPart = kColumns / 2;
  if constexpr (Shape::kColumns % kColumns != 0) {
    for_each_part<Shape>(sums, visit);
  } else {
    DIGLOT_NO_UNROLL
    for (int first = 0; first < Shape::kColumns; first += kColumns) {
      visit(reinterpret_cast<float (&)[kPart]>(sums), first);
      DIGLOT_UNROLL
      for (int i = 0; i < Shape::kSums - kPart; ++i) sums[i] = sums[i + kPart];
    }
  }
}

// Stores all parts.
template <typename T, typename Shape, typename Batch>
DIGLOT_DEVICE void store_by_tma(float (&sums)[Shape::kSums], TmaParts<Shape>& parts,
                                const TensorMap& c, int row, int column, const Batch& batch) {
  for_each_part<Shape>(sums, [&](auto& part, int first) {
    write_part<T, Shape>(part, parts);
    store_part<T, Shape, sizeof(part) / 4>(parts, c, row, column + first, batch);
  });
}

}  // namespace diglot
