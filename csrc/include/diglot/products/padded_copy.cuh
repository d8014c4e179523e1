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
  bool is_transposed;                  // whether neighbours in the source lie along outer
  TileSchedule schedule;               // rows of tiles are along outer

  DIGLOT_DEVICE int64_t start(int64_t batch) const {
    const int64_t second = batch / inner_batches;
    return (batch - second * inner_batches) * batch_strides[0] + second * batch_strides[1];
  }
};

constexpr int kCopyWarps = 4, kCopyThreads = 32 * kCopyWarps;

// A warp copies a piece of a line: a few accesses for each lane.
template <typename T>
struct LinesShape {
  static constexpr int kElements = kAccessBytes / sizeof(T);
  static constexpr int kAccesses = 4;
  static constexpr int kRows = kCopyWarps, kColumns = kAccesses * 32 * kElements;
};

// Four bytes of two words. Digit i of `order`, in hexadecimal, is the number of byte i: 0 to 3 in
// the first word, 4 to 7 in the second.
DIGLOT_DEVICE uint32_t pick_bytes(uint32_t first, uint32_t second, uint32_t order) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(first, second, order);
#else
  const uint64_t both = uint64_t{second} << 32 | first;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) {
    picked |= (static_cast<uint32_t>(both >> (order >> 4 * i & 7) * 8) & 0xff) << 8 * i;
  }
  return picked;
#endif
}

// The 16 bytes that begin `skipped` bytes after the start of the first 16.
DIGLOT_DEVICE uint4 shift_single_bytes(const uint4& first, const uint4& second, int skipped) {
  uint32_t words[] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  DIGLOT_UNROLL
  for (int i = 0; i < 6; ++i) words[i] = skipped & 8 ? words[i + 2] : words[i];
  DIGLOT_UNROLL
  for (int i = 0; i < 5; ++i) words[i] = skipped & 4 ? words[i + 1] : words[i];
  const auto order = static_cast<uint32_t>(0x3210 + skipped % 4 * 0x1111);
  DIGLOT_UNROLL
  for (int i = 0; i < 4; ++i) words[i] = pick_bytes(words[i], words[i + 1], order);
  return {words[0], words[1], words[2], words[3]};
}

// 16 bytes that nobody needs again. L2 should keep the copy instead, which the product reads.
template <typename T>
DIGLOT_DEVICE uint4 load_once(const T* address) {
#if defined(__CUDA_ARCH__)
  return __ldcs(reinterpret_cast<const uint4*>(address));
#else
  return load_constant(address);
#endif
}

// 16 bytes from any element on. Where they are not aligned, two aligned accesses hold them, and
// neighbouring threads find each other's in L1.
template <typename T, bool kIsAligned = false>
DIGLOT_DEVICE Vector<T> load_anywhere(const T* first) {
  const int skipped = kIsAligned ? 0 : elements_since_alignment(first);
  const T* const begin = first - skipped;
  uint4 bits = load_once(begin);
  if constexpr (!kIsAligned) {
    const uint4 next = skipped > 0 ? load_once(begin + kAccessBytes / sizeof(T)) : bits;
    if constexpr (sizeof(T) == 1) {
      bits = shift_single_bytes(bits, next, skipped);
    } else {
      bits = shift_bytes<sizeof(T)>(bits, next, skipped * static_cast<int>(sizeof(T)));
    }
  }
  Vector<T> piece;
  memcpy(&piece, &bits, sizeof(piece));
  return piece;
}

// The elements of a line from `first` on, and zeros behind its end.
template <typename T>
DIGLOT_DEVICE Vector<T> load_piece(const T* line, int64_t first, int64_t end, int64_t stride) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  const int skipped = elements_since_alignment(line + first);
  const int64_t begin = first - skipped;
  if (stride == 1 && begin >= 0 && begin + (skipped > 0 ? 2 : 1) * kElements <= end) {
    return load_anywhere(line + first);
  }
  Vector<T> piece;
  DIGLOT_UNROLL
  for (int e = 0; e < kElements; ++e) {
    piece[e] = first + e < end ? line[(first + e) * stride] : T{0};
  }
  return piece;
}

// Copies a tile of lines whose elements are neighbours in the source, or lie apart at any stride.
template <typename T>
DIGLOT_DEVICE void copy_lines(const T* from, T* to, const PaddedCopy& copy, const Tile& tile) {
  using Shape = LinesShape<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{tile.row} * Shape::kRows + thread / 32;
  if (row >= copy.outer) return;
  const T* const line = from + copy.start(tile.batch) + row * copy.outer_stride;
  T* const target = to + (tile.batch * copy.outer + row) * copy.pitch;
  const int64_t column = int64_t{tile.column} * Shape::kColumns + thread % 32 * Shape::kElements;
  constexpr int kStep = 32 * Shape::kElements;
  const bool is_inside =
      copy.inner_stride == 1 && column >= Shape::kElements &&
      column + (Shape::kAccesses - 1) * kStep + 2 * Shape::kElements <= copy.inner;
  if (is_inside) {
    Vector<T> pieces[Shape::kAccesses];
    DIGLOT_UNROLL
    for (int i = 0; i < Shape::kAccesses; ++i) {  // all are on their way at once
      pieces[i] = load_anywhere(line + column + i * kStep);
    }
    DIGLOT_UNROLL
    for (int i = 0; i < Shape::kAccesses; ++i) {
      store_vector(target + column + i * kStep, pieces[i]);
    }
    return;
  }
  DIGLOT_NO_UNROLL
  for (int i = 0; i < Shape::kAccesses; ++i) {
    const int64_t first = column + i * kStep;
    if (first < copy.inner) {
      store_vector(target + first, load_piece(line, first, copy.inner, copy.inner_stride));
    }
  }
}

// A thread transposes a square in its registers: what it loads at once are neighbours along outer,
// and what it stores are neighbours along inner. A warp loads 128 bytes of a line of the source,
// and stores 64 of a line of the copy.
template <typename T>
struct TransposedShape {
  static constexpr int kSide = kAccessBytes / sizeof(T);
  static constexpr int kLanes = 8, kWarps = 2;  // along outer
  static constexpr int kRows = kWarps * kLanes * kSide;
  static constexpr int kColumns = kCopyWarps / kWarps * 32 / kLanes * kSide;
};

// Bytes of two words in turn: first of their lower halves, then of their upper ones. And halves.
constexpr uint32_t kLowerBytes = 0x5140, kUpperBytes = 0x7362;
constexpr uint32_t kLowerHalves = 0x5410, kUpperHalves = 0x7632;

// Transposes 4 x 4 bytes: byte i of word j becomes byte j of word i.
DIGLOT_DEVICE void transpose_bytes(uint32_t (&words)[4]) {
  uint32_t pairs[4];
  DIGLOT_UNROLL
  for (int i = 0; i < 4; i += 2) {
    pairs[i] = pick_bytes(words[i], words[i + 1], kLowerBytes);
    pairs[i + 1] = pick_bytes(words[i], words[i + 1], kUpperBytes);
  }
  DIGLOT_UNROLL
  for (int i = 0; i < 2; ++i) {
    words[2 * i] = pick_bytes(pairs[i], pairs[i + 2], kLowerHalves);
    words[2 * i + 1] = pick_bytes(pairs[i], pairs[i + 2], kUpperHalves);
  }
}

// Transposes a square of elements of 1 or 4 bytes, whose lines are vectors.
template <typename T, int kSide>
DIGLOT_DEVICE void transpose(Vector<T> (&square)[kSide]) {
  constexpr int kWords = 4, kLines = kSide / kWords;  // of a vector; for each word of the result
  static_assert(kLines == 1 || sizeof(T) == 1);
  uint32_t words[kSide][kWords], result[kSide][kWords];
  memcpy(words, square, sizeof(words));
  DIGLOT_UNROLL
  for (int line = 0; line < kWords; ++line) {
    DIGLOT_UNROLL
    for (int word = 0; word < kWords; ++word) {
      if constexpr (kLines == 1) {
        result[word][line] = words[line][word];
      } else {
        uint32_t bytes[4];
        DIGLOT_UNROLL
        for (int i = 0; i < 4; ++i) bytes[i] = words[4 * line + i][word];
        transpose_bytes(bytes);
        DIGLOT_UNROLL
        for (int i = 0; i < 4; ++i) result[4 * word + i][line] = bytes[i];
      }
    }
  }
  memcpy(square, result, sizeof(result));
}

// Copies a tile of lines whose elements lie apart, where those of neighbouring lines are
// neighbours. Behind the end of a line follow zeros, to a multiple of 16 bytes.
template <typename T>
DIGLOT_DEVICE void copy_transposed(const T* from, T* to, const PaddedCopy& copy, const Tile& tile) {
  using Shape = TransposedShape<T>;
  constexpr int kSide = Shape::kSide;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int across = warp % Shape::kWarps * Shape::kLanes + lane % Shape::kLanes;
  const int along = warp / Shape::kWarps * (32 / Shape::kLanes) + lane / Shape::kLanes;
  const int64_t row = int64_t{tile.row} * Shape::kRows + across * kSide;
  const int64_t column = int64_t{tile.column} * Shape::kColumns + along * kSide;
  if (row >= copy.outer || column >= copy.inner) return;
  const int64_t step = copy.inner_stride, left = copy.outer - row;
  const T* const lines = from + copy.start(tile.batch) + row;
  const T* const source = lines + column * step;
  T* const target = to + (tile.batch * copy.outer + row) * copy.pitch + column;
  const bool is_aligned = elements_since_alignment(source) == 0 && step % kSide == 0;
  const bool is_inside = is_aligned ? left >= kSide : row >= kSide && left >= 2 * kSide;
  if (!is_inside || column + kSide > copy.inner) {
    DIGLOT_NO_UNROLL
    for (int i = 0; i < kSide && i < left; ++i) {
      store_vector(target + i * copy.pitch, load_piece(lines + i, column, copy.inner, step));
    }
    return;
  }
  Vector<T> square[kSide];
  const auto load = [&](auto aligned) {
    DIGLOT_UNROLL
    for (int i = 0; i < kSide; ++i) {  // all are on their way at once
      square[i] = load_anywhere<T, decltype(aligned)::value>(source + i * step);
    }
  };
  is_aligned ? load(std::true_type{}) : load(std::false_type{});
  transpose(square);
  DIGLOT_UNROLL
  for (int i = 0; i < kSide; ++i) store_vector(target + i * copy.pitch, square[i]);
}

// Copies a tile. Operands of 2 bytes are never transposed: wgmma reads them along any side.
template <typename T>
DIGLOT_DEVICE void copy_tile(const T* from, T* to, const PaddedCopy& copy, int64_t index) {
  const Tile tile = copy.schedule.tile(index);
  if constexpr (sizeof(T) != 2) {
    if (copy.is_transposed) return copy_transposed(from, to, copy, tile);
  }
  copy_lines(from, to, copy, tile);
}

}  // namespace diglot
