// Layer norm and RMS norm of rows, and of the sum of two arrays, as row operations. Twin of
// triton_ops/lib/norm/forward.py.
#pragma once

#include "diglot/rows/rows.cuh"

namespace diglot {

// kCount elements of a weight or a bias, as they lie in memory: unpacked they would take more
// registers.
template <typename W, int kCount>
struct PackedParameters {
  static constexpr int kPart = kCount == 1 ? 1 : kAccessBytes / static_cast<int>(sizeof(W));
  static constexpr int kParts = kCount / kPart;
  Held<W, kPart> parts[kParts];

  DIGLOT_DEVICE static PackedParameters all(float value) {
    PackedParameters result;
    Vector<W, kPart> values;
    DIGLOT_UNROLL
    for (int i = 0; i < kPart; ++i) values[i] = convert<W>(value);
    DIGLOT_UNROLL
    for (int k = 0; k < kParts; ++k) result.parts[k] = Held<W, kPart>::make(values);
    return result;
  }
  DIGLOT_DEVICE static PackedParameters load(const W* parameters) {
    PackedParameters result;
    if constexpr (kCount == 1) {
      result.parts[0] = Held<W, 1>::make({parameters[0]});
    } else {
      DIGLOT_UNROLL
      for (int k = 0; k < kParts; ++k) {
        result.parts[k] = {load_constant(parameters + k * kPart)};
      }
    }
    return result;
  }
  // The accesses of 16 bytes around parameters that begin anywhere.
  struct Around {
    uint4 bits[kParts + 1];
  };
  // `start`: the multiple of 16 bytes `skipped` elements before the parameters. Without them all
  // are `value`.
  DIGLOT_DEVICE static Around load_around(const W* start, int skipped, bool exist, float value) {
    const uint4 absent = all(value).parts[0].bits;
    const int last = skipped == 0 ? kParts - 1 : kParts;  // no access behind them
    Around result;
    DIGLOT_UNROLL
    for (int k = 0; k <= kParts; ++k) {
      result.bits[k] =
          load_constant(further(start, (k < kParts ? k : last) * kPart), exist, absent);
    }
    return result;
  }
  DIGLOT_DEVICE static PackedParameters within(const Around& around, int skipped) {
    PackedParameters result;
    DIGLOT_UNROLL
    for (int k = 0; k < kParts; ++k) {
      result.parts[k] = {shift_bytes<static_cast<int>(sizeof(W))>(
          around.bits[k], around.bits[k + 1], skipped * static_cast<int>(sizeof(W)))};
    }
    return result;
  }
  // The parameters from `first` on of an array of n, one by one. Those before its start or behind
  // its end may have any value. `first` is at most kCount before the start.
  DIGLOT_DEVICE static PackedParameters load_each(const W* parameters, int64_t first, int64_t n) {
    const int64_t rest = n - first;
    const int begin = first < 0 ? static_cast<int>(-first) : 0;
    const int end = rest < 0 ? 0 : rest < kCount ? static_cast<int>(rest) : kCount;
    PackedParameters result;
    DIGLOT_UNROLL
    for (int k = 0; k < kParts; ++k) {
      Vector<W, kPart> values;
      DIGLOT_UNROLL
      for (int i = 0; i < kPart; ++i) {
        const int element = k * kPart + i;
        values[i] = convert<W>(0.0f);
        if (element >= begin && element < end) values[i] = parameters[first + element];
      }
      result.parts[k] = Held<W, kPart>::make(values);
    }
    return result;
  }
  template <typename Compute>
  DIGLOT_DEVICE Vector<Compute, kCount> unpacked() const {
    Vector<Compute, kCount> result;
    DIGLOT_UNROLL
    for (int k = 0; k < kParts; ++k) {
      if constexpr (kCount == 1) {
        result[0] = convert<Compute>(parts[0].get()[0]);
      } else {
        const auto part = unpack_computed<W>(as_they_are(parts[k].bits));
        DIGLOT_UNROLL
        for (int i = 0; i < kPart; ++i) result[k * kPart + i] = part[i];
      }
    }
    return result;
  }
};

// Weight and, if centred, bias: one element of each for each position in a row; null: absent.
template <typename W, bool kIsCentered>
struct NormParameters {
  static constexpr int kArrays = kIsCentered ? 2 : 1;
  const W* arrays[kArrays];

  template <int kCount>
  struct Packed {
    PackedParameters<W, kCount> arrays[kArrays];
  };

  // The parameters from a thread's first element on. Their addresses are computed once.
  struct From {
    const W* arrays[kArrays];
    bool exist[kArrays];

    // The parameters of the kCount elements that are `step` further on.
    template <int kCount>
    DIGLOT_DEVICE Packed<kCount> load(int step) const {
      return packed<kCount>(
          [=](auto one, const W* array) { return decltype(one)::load(further(array, step)); });
    }
    // Those of one element, if it exists, without a branch.
    template <int kCount>
    DIGLOT_DEVICE Packed<kCount> load(int step, bool element_exists) const {
      static_assert(kCount == 1);
      Packed<kCount> result;
      DIGLOT_UNROLL
      for (int k = 0; k < kArrays; ++k) {
        const W absent = convert<W>(k == 0 ? 1.0f : 0.0f);
        const bool is_there = exist[k] && element_exists;
        result.arrays[k].parts[0] =
            Held<W, 1>::make({is_there ? *further(arrays[k], step) : absent});
      }
      return result;
    }
    // The parameters of the kCount elements from `first` on, of rows of n elements, one by one.
    template <int kCount>
    DIGLOT_DEVICE Packed<kCount> load_each(int64_t first, int64_t n) const {
      return packed<kCount>(
          [=](auto one, const W* array) { return decltype(one)::load_each(array, first, n); });
    }

   private:
    template <int kCount, typename Load>
    DIGLOT_DEVICE Packed<kCount> packed(Load load) const {
      using One = PackedParameters<W, kCount>;
      Packed<kCount> result;
      DIGLOT_UNROLL
      for (int k = 0; k < kArrays; ++k) {
        result.arrays[k] = exist[k] ? load(One{}, arrays[k]) : One::all(k == 0 ? 1.0f : 0.0f);
      }
      return result;
    }
  };
  // The parameters of rows of n elements that begin anywhere, from a thread's first element on, by
  // accesses of 16 bytes around those of kCount elements.
  template <int kCount>
  struct Around {
    using One = PackedParameters<W, kCount>;
    struct Loaded {
      typename One::Around arrays[kArrays];
    };
    const W* arrays[kArrays];  // multiples of 16 bytes
    int skipped[kArrays];      // elements from there to the thread's first
    bool exist[kArrays];
    // These accesses lie within the arrays for steps from `begin` to before `end`.
    int begin, end;

    // Those of the kCount elements that are `step` further on, if they exist.
    DIGLOT_DEVICE Loaded load(int step, bool elements_exist) const {
      Loaded result;
      DIGLOT_UNROLL
      for (int k = 0; k < kArrays; ++k) {
        result.arrays[k] = One::load_around(further(arrays[k], step), skipped[k],
                                            exist[k] && elements_exist, k == 0 ? 1.0f : 0.0f);
      }
      return result;
    }
    DIGLOT_DEVICE Packed<kCount> params(const Loaded& loaded) const {
      Packed<kCount> result;
      DIGLOT_UNROLL
      for (int k = 0; k < kArrays; ++k) {
        result.arrays[k] = One::within(loaded.arrays[k], skipped[k]);
      }
      return result;
    }
  };
  template <int kCount>
  DIGLOT_DEVICE Around<kCount> around(int64_t first, int64_t n) const {
    constexpr int kPart = Around<kCount>::One::kPart;
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    Around<kCount> result;
    result.begin = 0, result.end = static_cast<int>(kMost);
    DIGLOT_UNROLL
    for (int k = 0; k < kArrays; ++k) {
      const int skipped = elements_since_alignment(arrays[k] + first);
      result.exist[k] = arrays[k] != nullptr;
      result.skipped[k] = skipped;
      result.arrays[k] = as_it_is(arrays[k] + (first - skipped));
      if (!result.exist[k]) continue;
      const int64_t start = skipped - first;
      const int64_t rest = n + start - kCount - (skipped == 0 ? 0 : kPart);
      result.begin = start > result.begin ? static_cast<int>(start) : result.begin;
      result.end = rest + 1 < result.end ? static_cast<int>(rest + 1) : result.end;
    }
    return result;
  }
  DIGLOT_DEVICE From from(int64_t first) const {
    From result;
    DIGLOT_UNROLL
    for (int k = 0; k < kArrays; ++k) {
      result.exist[k] = arrays[k] != nullptr;
      result.arrays[k] = as_it_is(arrays[k] + (result.exist[k] ? first : 0));
    }
    return result;
  }
};

// (x - center) * factor * weight + bias.
template <typename Compute, bool kIsCentered>
struct NormMap {
  Compute center, factor;

  template <typename Packed>
  DIGLOT_DEVICE auto with(const Packed& params) const {
    const auto scale = params.arrays[0].template unpacked<Compute>();
    if constexpr (kIsCentered) {
      const auto shift = params.arrays[1].template unpacked<Compute>();
      return [=, center = center, factor = factor](int i, Compute x) {
        return fma((x - center) * factor, scale[i], shift[i]);
      };
    } else {
      return [=, factor = factor](int i, Compute x) { return x * factor * scale[i]; };
    }
  }
};

// T: the type of elements; W: of weight and bias.
template <typename T, typename W, bool kIsCentered>
struct NormForward : RowOperation {
  using Compute = compute_t<T>;
  using Parameter = W;
  using State = std::conditional_t<kIsCentered, Moments<Compute>, Sums<Compute, 1>>;

  static constexpr bool kVisitsAbsent = !kIsCentered;
  static constexpr float kAbsent = 0;

  static constexpr bool kReducesTogether = kIsCentered;
  static constexpr bool kMapsPositions = true;

  NormParameters<W, kIsCentered> params;
  Compute eps;
  Compute inverse_n;
  Compute* mean;  // of rows; null if not centred
  Compute* rstd;  // null: no statistics are stored
  int64_t row = 0;
  bool is_leader = false;

  DIGLOT_DEVICE NormForward for_row(const int64_t* offsets, bool is_row_leader) const {
    NormForward result = *this;
    result.row = offsets[0], result.is_leader = is_row_leader;
    return result;
  }

  template <typename Visit>
  DIGLOT_DEVICE State reduce(Visit visit, int count) const {
    if constexpr (kIsCentered) {
      Compute sum = 0, squares = 0;
      visit([&](Compute x) { sum += x; });
      const Compute thread_mean = count == 0 ? Compute(0) : sum / static_cast<Compute>(count);
      visit([&](Compute x) { squares = fma(x - thread_mean, x - thread_mean, squares); });
      return {static_cast<Compute>(count), thread_mean, squares};
    } else {
      State state = State::none();
      visit([&](Compute x) { state.values[0] = fma(x, x, state.values[0]); });
      return state;
    }
  }

  // Two sums take fewer instructions than combining the means of parts.
  template <typename Sum, typename SumPresent>
  DIGLOT_DEVICE State reduce_together(Sum sum, SumPresent sum_present, int count) const {
    const Compute elements = static_cast<Compute>(count);
    const Compute total = sum([](Compute so_far, Compute x) { return so_far + x; });
    const Compute center = count == 0 ? Compute(0) : divide_by_count(total, elements);
    const Compute squares = sum_present(
        center, [=](Compute so_far, Compute x) { return fma(x - center, x - center, so_far); });
    return {elements, center, squares};
  }
  // By two sums again. They take fewer instructions in sequence than combining pairs.
  template <typename Sum>
  DIGLOT_DEVICE State combine_together(const State& part, int count, Sum sum) const {
    const Compute elements = static_cast<Compute>(count);
    const Compute total = sum(part.count * part.mean);
    const Compute center = count == 0 ? Compute(0) : divide_by_count(total, elements);
    const Compute distance = part.mean - center;
    // In this order an empty part adds 0 even where the squared distance overflows.
    return {elements, center, sum(fma(part.count * distance, distance, part.squares))};
  }

  DIGLOT_DEVICE auto params_from(int64_t first) const { return params.from(first); }
  template <int kCount>
  DIGLOT_DEVICE auto params_around(int64_t first, int64_t n) const {
    return params.template around<kCount>(first, n);
  }
  template <typename Function>
  DIGLOT_DEVICE void for_each_param(Function function) const {
    DIGLOT_UNROLL
    for (int k = 0; k < params.kArrays; ++k) {
      if (params.arrays[k] != nullptr) function(params.arrays[k]);
    }
  }

  DIGLOT_DEVICE NormMap<Compute, kIsCentered> map(const State& total) const {
    Compute center = 0, squares;
    if constexpr (kIsCentered) {
      center = total.mean, squares = total.squares;
    } else {
      squares = total.values[0];
    }
    const Compute factor = reciprocal_root(fma(squares, inverse_n, eps));
    if (is_leader && rstd != nullptr) {
      if constexpr (kIsCentered) mean[row] = center;
      rstd[row] = factor;
    }
    return {center, factor};
  }
};

// The same for the sum of two arrays, rounded to their type. The sum is stored too.
template <typename T, typename W, bool kIsCentered>
struct AddNormForward : NormForward<T, W, kIsCentered> {
  static constexpr bool kJoins = true;

  T* joined;

  DIGLOT_DEVICE static T join(T x, T y) {
    return convert<T>(convert<compute_t<T>>(x) + convert<compute_t<T>>(y));
  }
  DIGLOT_DEVICE AddNormForward for_row(const int64_t* offsets, bool is_row_leader) const {
    AddNormForward result = *this;
    result.row = offsets[0], result.is_leader = is_row_leader;
    return result;
  }
};

}  // namespace diglot
