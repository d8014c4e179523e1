// Products of float64 matrices of any size and strides on tensor cores. Twin of
// triton_ops/lib/products/pointers.py.
//
// A block of eight warps computes a square tile of C. It goes along K in steps. The elements of the
// next steps are on their way into a ring of stages in shared memory, one by one (cp.async), so
// that they may lie at any strides. A warp computes half of the tile's rows, and a quarter of its
// columns.
#pragma once

#include "diglot/mma/dmma.cuh"
#include "diglot/products/cuda_cores.cuh"

namespace diglot {

template <int kTile_>
struct DmmaShape {
  static constexpr int kTile = kTile_;
  static constexpr int kThreads = 256;
  static constexpr int kDepth = 16;  // of an instruction, too
  static constexpr int kStages = 4;
  static constexpr int kWarpRows = kTile / 2, kWarpColumns = kTile / 4;
  static constexpr int kRows = kWarpRows / 16, kColumns = kWarpColumns / 8;  // products of a warp
  static constexpr int kLoads = kTile * kDepth / kThreads;
  // Lines of a tile in shared memory lie along C's side. Half a warp reads four neighbours of four
  // lines at once: four more elements keep them apart in the banks.
  static constexpr int kPitch = kTile + 4;

  struct Shared {
    double a[kStages][kDepth][kPitch];
    double b[kStages][kDepth][kPitch];
  };
};

// Copies an element from global to shared memory asynchronously, as copy_async does 16 bytes. A
// zero takes the place of an element that does not exist.
DIGLOT_DEVICE void copy_element_async(double* shared, const double* global, bool exists,
                                      [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  if (!exists) {
    *shared = 0;
    return;
  }
  interpreter::copy_async(shared, global, sizeof(*shared), place);
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global)), "r"(exists ? 8 : 0)
               : "memory");
#endif
}

// A thread's part of the tiles of A, or B, along K. "Side" is M of A, and N of B.
template <typename Shape>
class DmmaLoader {
 public:
  // The tile begins at `data`. `left` elements remain along the side.
  DIGLOT_DEVICE DmmaLoader(const double* data, int64_t side_stride, int64_t depth_stride,
                           int64_t left)
      : left_(left < Shape::kTile ? static_cast<int>(left) : Shape::kTile) {
    // Neighbouring threads load neighbours in memory: four along K fill a sector of 32 bytes, and
    // are apart in the banks of shared memory.
    const int thread = static_cast<int>(threadIdx.x);
    is_along_depth_ = depth_stride == 1 && side_stride != 1;
    side_ = is_along_depth_ ? thread / 4 : thread % Shape::kTile;
    depth_ = is_along_depth_ ? thread % 4 : thread / Shape::kTile;
    from_ = data + side_ * side_stride + depth_ * depth_stride;
  }

  // Loads the elements of the next step, `depth` along K. Others are zeros.
  DIGLOT_DEVICE void load(double (&tile)[Shape::kDepth][Shape::kPitch], int64_t side_stride,
                          int64_t depth_stride, int depth) {
    constexpr int kSides = Shape::kTile / (Shape::kThreads / 4);  // of a thread, along K
    constexpr int kDepthStep = Shape::kThreads / Shape::kTile;    // of others
    DIGLOT_UNROLL
    for (int i = 0; i < Shape::kLoads; ++i) {
      const int side = is_along_depth_ ? i % kSides * (Shape::kThreads / 4) : 0;
      const int down = is_along_depth_ ? i / kSides * 4 : i * kDepthStep;
      copy_element_async(&tile[depth_ + down][side_ + side],
                         from_ + side * side_stride + down * depth_stride,
                         side_ + side < left_ && depth_ + down < depth);
    }
    from_ += Shape::kDepth * depth_stride;
  }

 private:
  const double* from_;
  int side_, depth_, left_;
  bool is_along_depth_;
};

// A warp's sums of its products.
template <typename Shape>
using DmmaSums = double[Shape::kRows][Shape::kColumns][4];

// sums += A's tile times B's, of one step. The warp's part begins at `row` and `column`.
template <typename Shape>
DIGLOT_DEVICE void multiply_tiles(DmmaSums<Shape>& sums,
                                  const double (&a)[Shape::kDepth][Shape::kPitch],
                                  const double (&b)[Shape::kDepth][Shape::kPitch], int row,
                                  int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double held[Shape::kColumns][4];
  DIGLOT_UNROLL
  for (int j = 0; j < Shape::kColumns; ++j) {
    DIGLOT_UNROLL
    for (int e = 0; e < 4; ++e) {
      held[j][e] = b[dmma_depth_of_b(lane, e)][column + j * 8 + dmma_column_of_b(lane)];
    }
  }
  DIGLOT_UNROLL
  for (int i = 0; i < Shape::kRows; ++i) {
    double line[8];
    DIGLOT_UNROLL
    for (int e = 0; e < 8; ++e) {
      line[e] = a[dmma_depth_of_a(lane, e)][row + i * 16 + dmma_row_of_a(lane, e)];
    }
    DIGLOT_UNROLL
    for (int j = 0; j < Shape::kColumns; ++j) dmma(sums[i][j], line, held[j]);
  }
}

// Computes the block's tile.
template <typename Shape>
DIGLOT_DEVICE void multiply_by_dmma(const double* a, const double* b,
                                    const Epilogue<double>& epilogue, const FmaProduct& product) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const int64_t index = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (index >= product.schedule.count()) return;
  const Tile tile = product.schedule.tile(index);
  const auto [start_c, start_a, start_b, start_input] =
      product.batches.offsets_by_loop(tile.batch).array;
  const int64_t row = int64_t{tile.row} * Shape::kTile;
  const int64_t column = int64_t{tile.column} * Shape::kTile;
  DmmaLoader<Shape> rows(a + start_a + row * product.a.row, product.a.row, product.a.column,
                         product.m - row);
  DmmaLoader<Shape> columns(b + start_b + column * product.b.column, product.b.column,
                            product.b.row, product.n - column);
  const auto load = [&](int step) {
    if (step < product.steps) {
      const int64_t left = product.k - int64_t{step} * Shape::kDepth;
      const int depth = left < Shape::kDepth ? static_cast<int>(left) : Shape::kDepth;
      const int stage = step % Shape::kStages;
      rows.load(shared.a[stage], product.a.row, product.a.column, depth);
      columns.load(shared.b[stage], product.b.column, product.b.row, depth);
    }
    group_copies();  // even without copies: the wait counts groups
  };
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_row = warp % 2 * Shape::kWarpRows, warp_column = warp / 2 * Shape::kWarpColumns;
  DmmaSums<Shape> sums = {};
  for (int step = 0; step < Shape::kStages - 1; ++step) load(step);
  for (int step = 0; step < product.steps; ++step) {
    wait_for_copies_before(Shape::kStages - 2);
    __syncthreads();  // all copies have arrived, and no thread reads the stage before
    load(step + Shape::kStages - 1);
    const int stage = step % Shape::kStages;
    multiply_tiles<Shape>(sums, shared.a[stage], shared.b[stage], warp_row, warp_column);
  }
  // A loop takes up the sums of an instruction at a time, from shared memory: in registers each
  // would need code of its own, which is long for an activation.
  static_assert(sizeof(typename Shape::Shared) >= sizeof(sums) * Shape::kThreads);
  double* const own = reinterpret_cast<double*>(memory) + thread;
  __syncthreads();  // all threads have read the last stage
  DIGLOT_UNROLL
  for (int i = 0; i < Shape::kRows * Shape::kColumns; ++i) {
    DIGLOT_UNROLL
    for (int e = 0; e < 4; ++e) {
      own[(i * 4 + e) * Shape::kThreads] = sums[i / Shape::kColumns][i % Shape::kColumns][e];
    }
  }
  const Epilogue<double> here = epilogue.moved(start_c, start_input);
  DIGLOT_NO_UNROLL
  for (int i = 0; i < Shape::kRows * Shape::kColumns; ++i) {
    double part[4];
    DIGLOT_UNROLL
    for (int e = 0; e < 4; ++e) part[e] = own[(i * 4 + e) * Shape::kThreads];
    const int64_t first_line = row + warp_row + i / Shape::kColumns * 16;
    const int64_t first = column + warp_column + i % Shape::kColumns * 8;
    const auto for_each = [&](auto visit) {
      DIGLOT_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int64_t line = first_line + dmma_row(lane, e), at = first + dmma_column(lane, e);
        if (line < product.m && at < product.n) visit(part[e], line, at);
      }
    };
    finish(here, for_each, [&](bool is_before) { here.store(is_before, for_each); });
  }
}

}  // namespace diglot
