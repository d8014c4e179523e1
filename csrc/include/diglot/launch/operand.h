// A tensor as a planner sees it, and the common layout of several of them. Host code, knows
// nothing of PyTorch. Twin of triton_ops/launch/layout.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include "diglot/launch/arguments.h"
#include "diglot/strides.cuh"
#include "diglot/types.cuh"

namespace diglot {

constexpr int kMaxTensorRank = 64;
// Plans know addresses modulo this number.
constexpr uintptr_t kAddressModulus = 16;

struct Operand {
  int number = Address<void>::kNull;  // index among the call's tensors
  uintptr_t remainder = 0;            // of its address, by kAddressModulus
  DType dtype = DType::kFloat32;
  int64_t numel = 0;
  int rank = 0;
  int64_t sizes[kMaxTensorRank];
  int64_t strides[kMaxTensorRank];

  // Finds its data at a launch.
  template <typename T>
  Address<T> as() const {
    return Address<T>(number);
  }
  bool is_aligned(uintptr_t bytes = kAddressModulus) const { return remainder % bytes == 0; }

  // Sets the strides of a contiguous tensor of these sizes.
  void set_contiguous_strides() {
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      strides[d] = stride;
      stride *= std::max<int64_t>(sizes[d], 1);
    }
  }
};

// Finds the data of an operand at a launch; null if the operand is absent.
template <typename T>
Address<T> address_of(const Operand* operand) {
  return operand == nullptr ? Address<T>() : operand->as<T>();
}

// Elements of several strided arrays, with at most kMaxRank dimensions.
template <int kArrays, typename Index>
struct Slice {
  int64_t count;
  Strides<kArrays, Index> strides;
};

// The layout of kArrays operands, broadcast to the shape of the first. Size-1 dimensions are
// dropped. The others are ordered by the first operand's strides, the fastest first. Neighbours are
// merged wherever all arrays step through both as through one.
template <int kArrays>
struct Layout {
  int64_t numel = 1;
  int rank = 0;
  int64_t sizes[kMaxTensorRank];
  int64_t strides[kMaxTensorRank][kArrays];

  explicit Layout(const Operand* const (&operands)[kArrays]) {
    const Operand& shape = *operands[0];
    for (int d = 0; d < shape.rank; ++d) {
      const int64_t size = shape.sizes[d];
      numel *= size;
      if (size == 1) continue;
      sizes[rank] = size;
      for (int a = 0; a < kArrays; ++a) strides[rank][a] = stride_at(*operands[a], shape, d);
      ++rank;
    }
    sort_by_first_array();
    merge();
  }

  bool is_flat() const {
    if (rank > 1) return false;
    for (int a = 0; a < kArrays; ++a) {
      if (rank == 1 && strides[0][a] != 1) return false;
    }
    return true;
  }

  // Whether an array consists of runs of `elements` neighbours, each starting at a multiple of
  // `elements`.
  bool has_vectors(int array, int elements) const {
    return rank > 0 && strides[0][array] == 1 && sizes[0] % elements == 0 &&
           has_multiples(array, elements, 1);
  }

  // Whether an array's strides from dimension `first` on are multiples of `elements`.
  bool has_multiples(int array, int elements, int first) const {
    return std::all_of(strides + first, strides + std::max(rank, first),
                       [&](const auto& dimension) { return dimension[array] % elements == 0; });
  }

  // The layout of vectors of `elements` elements along the fastest dimension.
  Layout in_vectors(int elements) const {
    Layout result = *this;
    result.numel /= elements;
    result.sizes[0] /= elements;
    for (int64_t& stride : result.strides[0]) stride *= elements;
    return result;
  }

  // Whether every linear index and every offset fits 31 bits.
  bool is_narrow() const {
    if (numel >= (int64_t{1} << 31)) return false;
    for (int a = 0; a < kArrays; ++a) {
      int64_t extent = 0;
      for (int d = 0; d < rank; ++d) extent += (sizes[d] - 1) * strides[d][a];
      if (extent >= (int64_t{1} << 31)) return false;
    }
    return true;
  }

  // The slices of at most kMaxRank dimensions. Most layouts are one slice. For others this walks
  // the smallest dimensions, which makes the fewest slices. The fastest dimension stays in every
  // slice.
  template <typename Index>
  std::vector<Slice<kArrays, Index>> slices() const {
    std::vector<Slice<kArrays, Index>> result;
    Layout slice = *this;
    Layout walked = *this;
    walked.rank = 0;
    while (slice.rank > kMaxRank) {
      const int smallest = static_cast<int>(
          std::min_element(slice.sizes + 1, slice.sizes + slice.rank) - slice.sizes);
      slice.move_dimension(smallest, walked);
    }
    slice.numel = 1;
    for (int d = 0; d < slice.rank; ++d) slice.numel *= slice.sizes[d];
    Strides<kArrays, Index> strides = slice.template device_strides<Index>();
    for (int64_t first = 0; first < numel; first += slice.numel) {
      int64_t rest = first / slice.numel;
      strides.start = {};
      for (int d = 0; d < walked.rank; ++d) {
        const int64_t coordinate = rest % walked.sizes[d];
        rest /= walked.sizes[d];
        for (int a = 0; a < kArrays; ++a) {
          strides.start.array[a] += static_cast<Index>(coordinate * walked.strides[d][a]);
        }
      }
      result.push_back({slice.numel, strides});
    }
    return result;
  }

  template <typename Index>
  Strides<kArrays, Index> device_strides() const {
    if (rank > kMaxRank) throw std::invalid_argument("more dimensions than a kernel takes");
    Strides<kArrays, Index> result;
    result.rank = rank;
    for (int d = 0; d < rank; ++d) {
      const int64_t size =
          std::max<int64_t>(sizes[d], 1);  // an empty dimension is never divided by
      result.sizes[d] = typename Strides<kArrays, Index>::Divisor(static_cast<Index>(size));
      for (int a = 0; a < kArrays; ++a) {
        result.strides[d][a] = static_cast<Index>(strides[d][a]);
      }
    }
    return result;
  }

 private:
  // Stride along dimension d of `shape`, 0 where the operand is broadcast.
  static int64_t stride_at(const Operand& operand, const Operand& shape, int d) {
    const int dimension = d - (shape.rank - operand.rank);
    if (dimension < 0 || operand.sizes[dimension] == 1) return 0;
    return operand.strides[dimension];
  }

  void move_dimension(int d, Layout& to) {
    to.sizes[to.rank] = sizes[d];
    std::copy_n(strides[d], kArrays, to.strides[to.rank++]);
    for (--rank; d < rank; ++d) {
      sizes[d] = sizes[d + 1];
      std::copy_n(strides[d + 1], kArrays, strides[d]);
    }
  }

  void sort_by_first_array() {
    // Row-major order is nearly right for most tensors; insertion sort is stable and keeps it.
    for (int d = 0; d < rank / 2; ++d) swap(d, rank - 1 - d);
    for (int i = 1; i < rank; ++i) {
      for (int j = i; j > 0 && strides[j][0] < strides[j - 1][0]; --j) swap(j, j - 1);
    }
  }

  void merge() {
    int last = 0;
    for (int d = 1; d < rank; ++d) {
      bool mergeable = true;
      for (int a = 0; a < kArrays; ++a) {
        mergeable &= strides[d][a] == strides[last][a] * sizes[last];
      }
      if (mergeable) {
        sizes[last] *= sizes[d];
      } else {
        ++last;
        sizes[last] = sizes[d];
        for (int a = 0; a < kArrays; ++a) strides[last][a] = strides[d][a];
      }
    }
    if (rank > 0) rank = last + 1;
  }

  void swap(int i, int j) {
    std::swap(sizes[i], sizes[j]);
    for (int a = 0; a < kArrays; ++a) std::swap(strides[i][a], strides[j][a]);
  }
};

// Whether all of the operands have the type of the first.
template <int kArrays>
bool have_one_dtype(const Operand* const (&operands)[kArrays]) {
  return std::all_of(operands, operands + kArrays,
                     [&](const Operand* operand) { return operand->dtype == operands[0]->dtype; });
}

}  // namespace diglot
