// Products of matrices of any type, size and strides, by fused multiply-adds of single threads.
// Twin of triton_ops/lib/products/pointers.py.
//
// A block of 256 threads computes a square tile of C. It goes along K in steps of kDepth. While the
// threads multiply the tiles of one step, the elements of the next are on their way. Elements are
// widened to the type of the computation when they enter shared memory. A thread adds up an element
// of C in the order of K.
#pragma once

#include "diglot/math.cuh"
#include "diglot/products/epilogue.cuh"
#include "diglot/products/schedule.cuh"
#include "diglot/strides.cuh"
#include "diglot/types.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// Where a batch's matrices begin. Strides::offsets_by_loop does the same with other registers, and
// the kernel then spills.
template <int kArrays>
DIGLOT_DEVICE typename Strides<kArrays, int64_t>::Offsets offsets_of_batch(
    const Strides<kArrays, int64_t>& strides, int64_t batch) {
  auto result = strides.start;
  const auto add = [&](int d, int64_t place) {
    DIGLOT_UNROLL
    for (int a = 0; a < kArrays; ++a) result.array[a] += place * strides.strides[d][a];
  };
  int d = 0;
  DIGLOT_NO_UNROLL
  for (; d + 1 < strides.rank; ++d) {
    const int64_t rest = strides.sizes[d].quotient(batch);
    add(d, batch - rest * static_cast<int64_t>(strides.sizes[d].divisor));
    batch = rest;
  }
  if (strides.rank > 0) add(d, batch);
  return result;
}

// A B, for each matrix of a batch. The batch's dimensions have strides in C, A, B and the
// epilogue's input.
struct FmaProduct {
  int64_t m, n, k;
  int steps;  // along K
  MatrixStrides a, b;
  Strides<4, int64_t> batches;
  TileSchedule schedule;
};

// A thread computes kSide x kSide elements, in runs of four neighbours along both sides.
// kHasVectors: it loads four neighbours at once, where A and B have such vectors.
template <int kSide_, bool kHasVectors_ = false>
struct FmaShape {
  static constexpr int kSide = kSide_;
  static constexpr bool kHasVectors = kHasVectors_;
  static constexpr int kRun = 4;
  static constexpr int kThreadsSide = 16;
  static constexpr int kThreads = kThreadsSide * kThreadsSide;
  static constexpr int kTile = kSide * kThreadsSide;
  static constexpr int kDepth = kSide == 8 ? 8 : 16;  // what sums leave registers for
  static constexpr int kLoads = kTile * kDepth / kThreads;
  // Lines of a tile in shared memory lie along C's side. Four more keep columns apart in banks.
  static constexpr int kPitch = kTile + 4;
  static constexpr int kElements = kDepth * kPitch;
};

// The number of a thread along C's rows and columns, 0 to 15 each. A warp has eight by four. Then
// an access of it reads the fewest different elements, 128 bytes of A or 64 of B. They lie in
// different banks.
struct ThreadPlace {
  int row, column;
};
DIGLOT_DEVICE ThreadPlace place_of_thread() {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  return {warp / 4 * 8 + lane / 2 % 8, warp % 4 * 4 + lane % 2 + lane / 16 * 2};
}

// A thread's part of the tiles of A, or B, along K. "Side" is M of A, and N of B.
template <typename T, typename Shape>
class FmaLoader {
 public:
  // The tile begins at `data`. `left` elements remain along the side.
  DIGLOT_DEVICE FmaLoader(const T* data, int64_t side_stride, int64_t depth_stride, int64_t left)
      : left_(left < Shape::kTile ? static_cast<int>(left) : Shape::kTile) {
    // Neighbouring threads load neighbours in memory: single elements, or vectors.
    const bool is_along_depth = depth_stride == 1 && side_stride != 1;
    const int thread = static_cast<int>(threadIdx.x);
    const int across = (is_along_depth ? Shape::kDepth : Shape::kTile) / kVector;
    const int along = thread % across * kVector, other = thread / across;
    side_ = is_along_depth ? other : along;
    depth_ = is_along_depth ? along : other;
    const int step = Shape::kHasVectors ? 1 : Shape::kThreads / across;
    const bool steps_along_side = is_along_depth != Shape::kHasVectors;
    side_step_ = steps_along_side ? step : 0;
    depth_step_ = steps_along_side ? 0 : step;
    from_ = data + side_ * side_stride + depth_ * depth_stride;
  }

  // Loads the elements of the next step, `depth` along K. Others are zeros. Strides are the
  // constructor's: as arguments they stay in constant memory, not in registers.
  DIGLOT_DEVICE void load(int64_t side_stride, int64_t depth_stride, int depth) {
    if constexpr (Shape::kHasVectors) {
      // A vector lies inside, or outside.
      Vector<T, kVector> loaded{};
      if (side_ < left_ && depth_ < depth) loaded = load_vector<T, kVector>(from_);
      DIGLOT_UNROLL
      for (int i = 0; i < kVector; ++i) values_[i] = loaded[i];
    } else {
      const int64_t step = side_step_ * side_stride + depth_step_ * depth_stride;
      DIGLOT_UNROLL
      for (int i = 0; i < Shape::kLoads; ++i) {
        const bool is_inside = side_ + i * side_step_ < left_ && depth_ + i * depth_step_ < depth;
        values_[i] = is_inside ? from_[i * step] : T{};  // of 8 bits too, which convert from none
      }
    }
    from_ += Shape::kDepth * depth_stride;
  }

  DIGLOT_DEVICE void store(compute_t<T>* tile) const {
    if (Shape::kHasVectors && side_step_ == 1) {
      Vector<compute_t<T>, kVector> vector;
      DIGLOT_UNROLL
      for (int i = 0; i < kVector; ++i) vector[i] = convert<compute_t<T>>(values_[i]);
      uint4 bits;
      memcpy(&bits, &vector, sizeof(bits));
      *reinterpret_cast<uint4*>(tile + depth_ * Shape::kPitch + side_) = bits;
      return;
    }
    DIGLOT_UNROLL
    for (int i = 0; i < Shape::kLoads; ++i) {
      tile[(depth_ + i * depth_step_) * Shape::kPitch + side_ + i * side_step_] =
          convert<compute_t<T>>(values_[i]);
    }
  }

 private:
  static constexpr int kVector = Shape::kHasVectors ? Shape::kLoads : 1;

  const T* from_;
  int side_, depth_, side_step_, depth_step_, left_;
  T values_[Shape::kLoads];
};

// The elements of a line of a tile that a thread of this number along the side multiplies.
template <typename Shape, typename Value>
DIGLOT_DEVICE void read_line(Value (&values)[Shape::kSide], const Value* line, int number) {
  constexpr int kElements = kAccessBytes / sizeof(Value);
  DIGLOT_UNROLL
  for (int i = 0; i < Shape::kSide; i += kElements) {
    const int first = i / Shape::kRun * (Shape::kRun * Shape::kThreadsSide) + i % Shape::kRun;
    const auto loaded = load_vector<Value, kElements>(line + first + number * Shape::kRun);
    DIGLOT_UNROLL
    for (int e = 0; e < kElements; ++e) values[i + e] = loaded[e];
  }
}

// The place in a tile of a thread's element i along a side.
template <typename Shape>
DIGLOT_DEVICE int place_of(int i, int number) {
  return i / Shape::kRun * (Shape::kRun * Shape::kThreadsSide) + number * Shape::kRun +
         i % Shape::kRun;
}

// sums += A's tile times B's, of one step.
template <typename Shape, typename Value>
DIGLOT_DEVICE void multiply_tiles(Value (&sums)[Shape::kSide][Shape::kSide], const Value* a,
                                  const Value* b) {
  const ThreadPlace place = place_of_thread();
  DIGLOT_UNROLL
  for (int k = 0; k < Shape::kDepth; ++k) {
    Value row[Shape::kSide], column[Shape::kSide];
    read_line<Shape>(row, a + k * Shape::kPitch, place.row);
    read_line<Shape>(column, b + k * Shape::kPitch, place.column);
    DIGLOT_UNROLL
    for (int i = 0; i < Shape::kSide; ++i) {
      DIGLOT_UNROLL
      for (int j = 0; j < Shape::kSide; ++j) sums[i][j] = fma(row[i], column[j], sums[i][j]);
    }
  }
}

// sums += A B, for the block's tile. It begins at `row` and `column`. after(step) follows the
// products of each step. A product has sizes, steps and strides, as FmaProduct.
template <typename Shape, typename Value, typename A, typename B, typename Product, typename After>
DIGLOT_DEVICE void sum_products(Value (&sums)[Shape::kSide][Shape::kSide], const A* a, const B* b,
                                const Product& product, int64_t row, int64_t column, After after) {
  __shared__ __align__(16) Value tiles[2][2][Shape::kElements];
  FmaLoader<A, Shape> rows(a + row * product.a.row, product.a.row, product.a.column,
                           product.m - row);
  FmaLoader<B, Shape> columns(b + column * product.b.column, product.b.column, product.b.row,
                              product.n - column);
  const auto load = [&](int step) {
    const int64_t left = product.k - int64_t{step} * Shape::kDepth;
    const int depth = left < Shape::kDepth ? static_cast<int>(left) : Shape::kDepth;
    rows.load(product.a.row, product.a.column, depth);
    columns.load(product.b.column, product.b.row, depth);
  };
  const auto store = [&](int buffer) {
    rows.store(tiles[buffer][0]);
    columns.store(tiles[buffer][1]);
  };
  if (product.steps > 0) {
    load(0);
    store(0);
  }
  __syncthreads();
  for (int step = 0; step < product.steps; ++step) {
    const bool has_next = step + 1 < product.steps;
    if (has_next) load(step + 1);
    multiply_tiles<Shape>(sums, tiles[step % 2][0], tiles[step % 2][1]);
    if (has_next) store((step + 1) % 2);
    __syncthreads();
    after(step);
  }
}

// Computes a tile of C, which is of type Out.
template <typename T, typename Shape, typename Product, typename Out>
DIGLOT_DEVICE void multiply_tile(const T* a, const T* b, const Product& product,
                                 const Epilogue<Out>& epilogue, const Tile& tile) {
  const ThreadPlace place = place_of_thread();
  const auto start_of = [](int number) { return int64_t{number} * Shape::kTile; };
  const int64_t row = start_of(tile.row), column = start_of(tile.column);
  compute_t<T> sums[Shape::kSide][Shape::kSide] = {};
  sum_products<Shape>(sums, a, b, product, row, column, [](int) {});
  const auto for_each = [&](auto visit) {
    DIGLOT_UNROLL
    for (int j = 0; j < Shape::kSide; ++j) {
      const int64_t at = column + place_of<Shape>(j, place.column);
      DIGLOT_UNROLL
      for (int i = 0; i < Shape::kSide; ++i) {
        const int64_t line = row + place_of<Shape>(i, place.row);
        if (line < product.m && at < product.n) visit(sums[i][j], line, at);
      }
    }
  };
  finish(epilogue, for_each, [&](bool is_before) { epilogue.store(is_before, for_each); });
}

// Computes the block's tile.
template <typename T, typename Shape, typename Out>
DIGLOT_DEVICE void multiply_by_fma(const T* a, const T* b, const Epilogue<Out>& epilogue,
                                   const FmaProduct& product) {
  const int64_t index = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (index >= product.schedule.count()) return;
  const Tile tile = product.schedule.tile(index);
  const auto [start_c, start_a, start_b, start_input] =
      offsets_of_batch(product.batches, tile.batch).array;
  multiply_tile<T, Shape>(a + start_a, b + start_b, product, epilogue.moved(start_c, start_input),
                          tile);
}

}  // namespace diglot
