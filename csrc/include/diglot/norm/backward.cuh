// Derivatives of layer norm and RMS norm: definitions that both ways through rows share. Twin of
// triton_ops/lib/norm/backward.py.
//
// One launch finds the input's derivatives and, for weight and bias, the sums over groups of rows.
// A second launch adds up the groups (group_sums.cuh). If one group has all rows, its sums are the
// gradients, and there is no second launch. With x' = (x - mean) rstd, h = g weight and means over
// a row of n elements,
//
//   grad_input = rstd (h - mean(h) - x' mean(h x')) + grad_sum,
//   grad_weight = the sum of g x' over all rows,  grad_bias = that of g;
//
// RMS norm has no mean: x' = x rstd, and no mean(h).
//
// A few groups of threads loop over rows, each over rows of its own. A thread has the same columns
// of all rows of its group and adds up their derivatives.
//
//   backward_resident.cuh   a team of threads, a cluster or the whole grid holds a row; the next
//                           rows arrive in shared memory meanwhile
//   backward_streaming.cuh  longer rows: a cluster takes one at a time and reads it twice
#pragma once

#include "diglot/reduce/states.cuh"
#include "diglot/strides.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// Threads of a block, at most. One block runs per SM, because sums take many registers.
constexpr int kNormThreads = 512;

// The compile-time shape of a kernel. A thread has kAccesses times 16 bytes of a row, in units of
// neighbouring elements: 16 bytes if kIsWide, else a word. Neighbouring lanes have neighbouring
// units, and a warp has all of its units side by side. Rows of narrow units may start anywhere.
template <int kAccesses_, bool kIsWide_>
struct NormShape {
  static constexpr int kAccesses = kAccesses_;
  static constexpr bool kIsWide = kIsWide_;
  template <typename T>
  static constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(T));
  template <typename T>
  static constexpr int kColumns = kAccesses * kElements<T>;    // of a thread
  static constexpr int kPartBytes = kAccesses * kAccessBytes;  // of a thread, for one array
  template <typename T>
  static constexpr int kUnitBytes = kIsWide         ? kAccessBytes
                                    : sizeof(T) < 4 ? 4
                                                    : static_cast<int>(sizeof(T));
  // Whether less than a warp may share a row.
  static constexpr bool kHasLanes = kAccesses == 1;
  // Whether rows may lie at unequal distances.
  static constexpr bool kIsStrided = false;
};
// Short rows that start anywhere: less than a warp shares one, although a lane has several
// accesses.
template <int kAccesses_>
struct NormLanesShape : NormShape<kAccesses_, false> {
  static constexpr bool kHasLanes = true;
};
// Rows of any strides. To find such a row takes divisions, whose code would delay
// every kernel's first call.
template <int kAccesses_, bool kIsWide_>
struct NormStridedShape : NormShape<kAccesses_, kIsWide_> {
  static constexpr bool kIsStrided = true;
};

// Rows of narrow units lie in shared memory as far from a line's start as in global memory. So a
// warp's part takes a line more. A copy that crosses lines otherwise would read the L2 cache twice.
constexpr int kNormLineBytes = 128;

// Threads of a block that holds rows: few enough that each has registers for a row and its sums.
constexpr int kNormResidentThreads = 384;

// Stores an access to shared or global memory. `store_vector` is for global memory alone.
template <typename U, typename Access>
DIGLOT_DEVICE void store_anywhere(U* address, const Access& values) {
  using Bits = std::conditional_t<sizeof(values) == sizeof(uint4), uint4, Access>;
  Bits bits;
  memcpy(&bits, &values, sizeof(values));
  *reinterpret_cast<Bits*>(address) = bits;
}

// Where the sums of a group of rows are kept. The sums of a unit's columns are one or two accesses,
// each in its own plane, so that neighbouring lanes write neighbours.
struct NormSumOrder {
  int64_t pitch;   // columns of a group
  int planes = 1;  // or 2

  DIGLOT_HOST_DEVICE int64_t plane() const { return planes == 1 ? pitch : pitch / 2; }
  // The column whose sum is at the place where an access of `size` sums begins.
  DIGLOT_DEVICE int64_t column(int64_t place, int size) const {
    const bool is_second = place >= plane();
    return is_second ? 2 * (place - plane()) + size : place * planes;
  }
};

// A number from which the compiler computes others at each use. Otherwise it would keep them in
// registers while a loop runs, and sums need all registers.
DIGLOT_DEVICE int computed_anew(int number) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// The arrays of rows, in the order of their offsets.
enum NormArray { kGradInput, kGradOutput, kInput, kGradSum, kStatistics, kNormArrays };

// How groups, blocks and teams share out rows.
struct NormSharing {
  int64_t n;         // elements of a row
  int64_t count;     // rows
  int groups;        // of rows
  int blocks;        // that share a row: of a cluster, a power of two, or of the grid
  bool spans_grid;   // all blocks of the grid share every row
  int64_t share;     // the most elements of a row for a block
  int team;          // threads of a block that share a row: whole warps, or a power of two
  int teams;         // of a block
  int stages;        // rows of a team that are in shared memory or on their way there
  int arrays;        // in each stage
  int pitch;         // 16-byte accesses from a warp's array in a stage to its next
  int smem_fields;   // streaming rows: sums, of weight and bias, that are in shared memory
  bool accumulates;  // adds to the sums of an earlier launch
  NormSumOrder order;
  // What divides by `team` and `blocks`: divisions take many instructions.
  uint32_t team_reciprocal;
  int block_bits;

  DIGLOT_HOST_DEVICE bool spans_cluster() const { return blocks > 1 && !spans_grid; }
  // Sets what `team`, `blocks` and `spans_grid` say.
  void prepare() {
    team_reciprocal = static_cast<uint32_t>(((1 << kReciprocalBits) + team - 1) / team);
    block_bits = spans_grid ? 31 : 0;
    while (!spans_grid && 1 << block_bits < blocks) ++block_bits;
  }
  // The team of a thread. Exact up to 2 * kNormThreads.
  DIGLOT_DEVICE int team_of(int thread) const {
    return static_cast<int>(static_cast<uint32_t>(thread) * team_reciprocal >> kReciprocalBits);
  }
  // This block's group, and its number among the blocks that share a row.
  DIGLOT_DEVICE int group() const { return static_cast<int>(blockIdx.x >> block_bits); }
  DIGLOT_DEVICE int block() const {
    return static_cast<int>(blockIdx.x & ((1u << block_bits) - 1));
  }

 private:
  static constexpr int kReciprocalBits = 20;
};

// Rows of any strides.
struct NormStridedRows : NormSharing {
  Strides<kNormArrays, int64_t> starts;

  DIGLOT_DEVICE auto offsets(int64_t row) const { return starts.offsets_by_loop(row); }
};

// Rows at equal distances.
struct NormRows : NormSharing {
  struct Offsets {
    int64_t array[kNormArrays];
  };
  Offsets start, step;

  NormRows() = default;
  explicit NormRows(const NormStridedRows& rows) : NormSharing(rows) {
    for (int a = 0; a < kNormArrays; ++a) {
      start.array[a] = rows.starts.start.array[a];
      step.array[a] = rows.starts.rank == 0 ? 0 : rows.starts.strides[0][a];
    }
  }
  DIGLOT_DEVICE Offsets offsets(int64_t row) const {
    Offsets result = start;
    DIGLOT_UNROLL
    for (int a = 0; a < kNormArrays; ++a) result.array[a] += row * step.array[a];
    return result;
  }
};

template <typename Shape>
using NormRowsOf = std::conditional_t<Shape::kIsStrided, NormStridedRows, NormRows>;

template <typename T>
struct NormGradients {
  using Compute = compute_t<T>;

  const T* grad_output;
  const T* input;
  const T* grad_sum;  // or null
  const Compute* mean;
  const Compute* rstd;
  Compute share;         // of an element in a mean: 1 / n
  const void* weight;    // or null
  bool is_weight_wide;   // it has the type Compute, not T
  Compute* weight_sums;  // of the groups, one after the other; or null
  Compute* bias_sums;    // likewise
  void* results[2];      // the gradients of weight and bias, if one group has all rows; or null
  bool is_result_wide;   // they have the type Compute, not T
  uint32_t* barrier;     // of the grid, if all its blocks share every row,
  void* mail;            // and what they send each other
  T* grad_input;

  DIGLOT_DEVICE bool has_results() const { return results[0] != nullptr || results[1] != nullptr; }

  // Calls function(weights) with a pointer to their type. Null: all weights are 1.
  template <typename Function>
  DIGLOT_DEVICE void with_weights(Function function) const {
    if (sizeof(T) == sizeof(Compute) || !is_weight_wide) {
      function(static_cast<const T*>(weight));
    } else {
      function(static_cast<const Compute*>(weight));
    }
  }
};

// The sums over a row that its derivative needs: of h x', and of h if it is centred.
template <typename Compute, bool kIsCentered>
using NormSums = Sums<Compute, kIsCentered ? 2 : 1>;

// A row's statistics, for x' = x factor + shift.
template <typename Compute, bool kIsCentered>
struct NormRow {
  Compute factor, shift;

  template <typename T>
  DIGLOT_DEVICE static NormRow load(const NormGradients<T>& arrays, int64_t offset) {
    return {arrays.rstd[offset], kIsCentered ? arrays.mean[offset] : Compute(0)};
  }
  DIGLOT_DEVICE NormRow ready() const { return {factor, -shift * factor}; }

  DIGLOT_DEVICE Compute normalized(Compute x) const {
    return kIsCentered ? fma(x, factor, shift) : x * factor;
  }
  // The derivative of one element of the input.
  struct Map {
    Compute factor, slope, offset;

    // h: the output's gradient times the weight.
    DIGLOT_DEVICE Compute operator()(Compute h, Compute x) const {
      return fma(h, factor, kIsCentered ? fma(x, slope, offset) : x * slope);
    }
  };
  DIGLOT_DEVICE Map map(const NormSums<Compute, kIsCentered>& sums, Compute share) const {
    const Compute mean = sums.values[0] * share * factor;
    Map result{factor, -mean * factor, 0};
    if constexpr (kIsCentered) result.offset = -fma(mean, shift, sums.values[1] * share * factor);
    return result;
  }
};

}  // namespace diglot
