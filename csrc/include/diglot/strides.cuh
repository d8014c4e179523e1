// From a linear element index to the offsets of an element in several strided arrays of one shape.
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

constexpr int kMaxRank = 8;  // larger arrays take a launch for each slice

// Division of 32-bit unsigned integers by a divisor fixed at launch, by a multiplication and a
// shift (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994,
// figure 4.1). Exact for numerators below 2^31.
struct FastDivisor {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t value) : divisor(value) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }

  DIGLOT_DEVICE uint32_t quotient(uint32_t n) const {
#if defined(__CUDA_ARCH__)
    const uint32_t high = __umulhi(n, multiplier);
#else
    const uint32_t high = static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32);
#endif
    return (high + n) >> shift;
  }
};

struct PlainDivisor {
  int64_t divisor = 1;

  PlainDivisor() = default;
  explicit PlainDivisor(int64_t value) : divisor(value) {}
  DIGLOT_DEVICE int64_t quotient(int64_t n) const { return n / divisor; }
};

template <typename Index>
struct DivisorOf {
  using type = PlainDivisor;
};
template <>
struct DivisorOf<uint32_t> {
  using type = FastDivisor;
};

// kArrays strided arrays of one shape. Dimension 0 varies fastest. Index is uint32_t where every
// linear index and offset is below 2^31, int64_t otherwise.
template <int kArrays, typename Index>
struct Strides {
  using Divisor = typename DivisorOf<Index>::type;
  struct Offsets {
    Index array[kArrays];
  };

  // As a kernel's argument: what arrays of one dimension need comes first, side by side. The first
  // access of an SM to each line of arguments is a miss.
  int rank = 0;
  Offsets start{};  // of the first element
  Index strides[kMaxRank][kArrays] = {};
  Divisor sizes[kMaxRank];

  DIGLOT_DEVICE Offsets offsets(Index linear) const {
    Offsets result = start;
    DIGLOT_UNROLL
    for (int d = 0; d < kMaxRank; ++d) {
      if (d >= rank) break;
      step_dimension(d, linear, result);
    }
    return result;
  }
  // The same with less code, for kernels that compute offsets once. Most arrays have one dimension,
  // or none, with strides of 0.
  DIGLOT_DEVICE Offsets offsets_by_loop(Index linear) const {
    Offsets result = start;
    if (__builtin_expect(rank > 1, 0)) {
      DIGLOT_NO_UNROLL
      for (int d = 1; d < rank; ++d) {
        const Index rest = sizes[d - 1].quotient(linear);
        add(d - 1, linear - rest * static_cast<Index>(sizes[d - 1].divisor), result);
        linear = rest;
      }
      add(rank - 1, linear, result);
    } else {
      add(0, linear, result);
    }
    return result;
  }

 private:
  DIGLOT_DEVICE void step_dimension(int d, Index& linear, Offsets& result) const {
    // The last dimension's coordinate is the rest: no division.
    const Index rest = d + 1 < rank ? sizes[d].quotient(linear) : 0;
    const Index coordinate =
        d + 1 < rank ? linear - rest * static_cast<Index>(sizes[d].divisor) : linear;
    add(d, coordinate, result);
    linear = rest;
  }
  DIGLOT_DEVICE void add(int d, Index coordinate, Offsets& result) const {
    DIGLOT_UNROLL
    for (int a = 0; a < kArrays; ++a) result.array[a] += coordinate * strides[d][a];
  }
};

}  // namespace diglot
