// Copies of matrices that TMA or wgmma cannot read where they lie. In a copy, elements along one
// side are neighbours, and lines of them begin at multiples of 16 bytes. Twin of
// triton_ops/lib/products/padded_copy.py.
//
// "Inner" is the side whose elements are neighbours in the copy, "outer" the other one.
#pragma once

#include "diglot/products/schedule.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// A batch of matrices and their copies, which follow each other.
struct PaddedCopy {
  int64_t inner, outer;                // elements of a line, lines of a matrix
  int64_t inner_stride, outer_stride;  // in the source
  int64_t pitch;                       // from a line of the copy to the next
  int64_t inner_batches;               // matrices along the batch's first dimension
  int64_t batch_strides[2];            // in the source
  TileSchedule schedule;               // rows of tiles are along outer

  DIGLOT_DEVICE int64_t start(int64_t batch) const {
    const int64_t second = batch / inner_batches;
    return (batch - second * inner_batches) * batch_strides[0] + second * batch_strides[1];
  }
};

// A warp copies a piece of a line: a few accesses for each lane.
template <typename T>
struct LinesShape {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kElements = kAccessBytes / sizeof(T);
  static constexpr int kAccesses = 4;
  static constexpr int kRows = kWarps, kColumns = kAccesses * 32 * kElements;
};

// The elements of a line from `first` on, and zeros behind its end. They may begin anywhere: two
// aligned accesses hold them, and neighbouring threads find each other's in L1.
template <typename T>
DIGLOT_DEVICE Vector<T> load_piece(const T* line, int64_t first, int64_t end, int64_t stride) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  const int skipped = elements_since_alignment(line + first);
  const int64_t begin = first - skipped;
  constexpr bool kCanShift = sizeof(T) > 1;  // single bytes only at a multiple of 16
  Vector<T> piece;
  if (stride == 1 && begin >= 0 && begin + (skipped > 0 ? 2 : 1) * kElements <= end &&
      (kCanShift || skipped == 0)) {
    const uint4 bits = load_constant(line + begin);
    if constexpr (kCanShift) {
      const uint4 next = skipped > 0 ? load_constant(line + begin + kElements) : bits;
      const int bytes = skipped * static_cast<int>(sizeof(T));
      const uint4 shifted = shift_bytes<sizeof(T)>(bits, next, bytes);
      memcpy(&piece, &shifted, sizeof(piece));
    } else {
      memcpy(&piece, &bits, sizeof(piece));
    }
  } else {
    DIGLOT_UNROLL
    for (int e = 0; e < kElements; ++e) {
      piece[e] = first + e < end ? line[(first + e) * stride] : T{0};
    }
  }
  return piece;
}

// Copies lines whose elements are neighbours in the source, or lie apart at any stride.
template <typename T>
DIGLOT_DEVICE void copy_lines(const T* from, T* to, const PaddedCopy& copy) {
  using Shape = LinesShape<T>;
  const Tile tile = copy.schedule.tile(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{tile.row} * Shape::kRows + thread / 32;
  if (row >= copy.outer) return;
  const T* const line = from + copy.start(tile.batch) + row * copy.outer_stride;
  T* const target = to + (tile.batch * copy.outer + row) * copy.pitch;
  const int64_t column = int64_t{tile.column} * Shape::kColumns + thread % 32 * Shape::kElements;
  DIGLOT_UNROLL
  for (int i = 0; i < Shape::kAccesses; ++i) {
    const int64_t first = column + i * 32 * Shape::kElements;
    if (first < copy.inner) {
      store_vector(target + first, load_piece(line, first, copy.inner, copy.inner_stride));
    }
  }
}

// A block transposes a square tile.
struct TransposedShape {
  static constexpr int kSide = 32, kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kRows = kSide, kColumns = kSide;
};

// Copies lines whose elements lie apart, where those of neighbouring lines are neighbours.
template <typename T>
DIGLOT_DEVICE void copy_transposed(const T* from, T* to, const PaddedCopy& copy) {
  constexpr int kSide = TransposedShape::kSide, kWarps = TransposedShape::kWarps;
  __shared__ T elements[kSide][kSide + 1];  // one more keeps a column's elements apart in banks
  const Tile tile = copy.schedule.tile(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = int64_t{tile.row} * kSide, column = int64_t{tile.column} * kSide;
  const T* const source = from + copy.start(tile.batch) + row * copy.outer_stride;
  DIGLOT_UNROLL
  for (int i = warp; i < kSide; i += kWarps) {
    if (row + lane < copy.outer && column + i < copy.inner) {
      elements[i][lane] = source[lane * copy.outer_stride + (column + i) * copy.inner_stride];
    }
  }
  __syncthreads();
  T* const target = to + (tile.batch * copy.outer + row) * copy.pitch + column;
  DIGLOT_UNROLL
  for (int i = warp; i < kSide; i += kWarps) {
    if (row + i < copy.outer && column + lane < copy.inner) {
      target[i * copy.pitch + lane] = elements[lane][i];
    }
  }
}

}  // namespace diglot
