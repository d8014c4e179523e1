// Layer norm and RMS norm of rows, and of the sum of two arrays, as row operations. Twin of
// triton_ops/lib/norm/forward.py.
#pragma once

#include "diglot/rows/rows.cuh"

namespace diglot {

// Elements of a weight or a bias in the type of the computation; `otherwise` if there is none.
// kIsStaged: they are in shared memory.
template <int kCount, bool kIsStaged, typename Compute, typename W>
DIGLOT_DEVICE Vector<Compute, kCount> load_parameters(const W* parameters, int64_t first,
                                                      Compute otherwise) {
  Vector<Compute, kCount> result;
  DIGLOT_UNROLL
  for (int i = 0; i < kCount; ++i) result[i] = otherwise;
  if (parameters == nullptr) return result;
  if constexpr (kCount == 1) {
    result[0] = convert<Compute>(parameters[first]);
  } else {
    constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(W));
    DIGLOT_UNROLL
    for (int part = 0; part < kCount; part += kElements) {
      const W* const from = parameters + first + part;
      const auto loaded = unpack_computed<W>(kIsStaged ? *reinterpret_cast<const uint4*>(from)
                                                       : load_constant(from));
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) result[part + i] = loaded[i];
    }
  }
  return result;
}

// The same for kCount elements of an array of n, wherever it lies. Those before its start and
// behind its end are `otherwise`. `first` is at most kCount before the start.
template <int kCount, typename Compute, typename W>
DIGLOT_DEVICE Vector<Compute, kCount> load_parameters_around(const W* parameters, int64_t first,
                                                             int64_t n, Compute otherwise) {
  constexpr int kElements = kAccessBytes / static_cast<int>(sizeof(W));
  Vector<Compute, kCount> result;
  DIGLOT_UNROLL
  for (int i = 0; i < kCount; ++i) result[i] = otherwise;
  if (parameters == nullptr) return result;
  // Two accesses of 16 bytes around each part, where both are within the array.
  const int skipped = elements_since_alignment(parameters + first);
  const int64_t start = first - skipped;
  if (start >= 0 && start + kCount + kElements <= n) {
    uint4 bits[kCount / kElements + 1];
    DIGLOT_UNROLL
    for (int k = 0; k <= kCount / kElements; ++k) {
      bits[k] = load_constant(parameters + start + k * kElements);
    }
    DIGLOT_UNROLL
    for (int k = 0; k < kCount / kElements; ++k) {
      const auto loaded = unpack_computed<W>(shift_bytes<static_cast<int>(sizeof(W))>(
          bits[k], bits[k + 1], skipped * static_cast<int>(sizeof(W))));
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) result[k * kElements + i] = loaded[i];
    }
  } else {
    DIGLOT_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (first + i >= 0 && first + i < n) result[i] = convert<Compute>(parameters[first + i]);
    }
  }
  return result;
}

// One element of each for each position in a row; null: absent.
template <typename W>
struct NormParameters {
  const W* weight;
  const W* bias;
};

// (x - center) * factor * weight + bias.
template <typename Compute, typename W, bool kIsCentered, bool kIsStaged_ = false>
struct NormMap {
  static constexpr bool kIsStaged = kIsStaged_;

  Compute center, factor;
  NormParameters<W> params;

  DIGLOT_DEVICE auto staged(const NormParameters<W>& staged_params) const {
    return NormMap<Compute, W, kIsCentered, true>{center, factor, staged_params};
  }
  template <int kCount>
  DIGLOT_DEVICE auto at_position(int64_t first) const {
    return by([&](const W* array, Compute otherwise) {
      return load_parameters<kCount, kIsStaged>(array, first, otherwise);
    });
  }
  template <int kCount>
  DIGLOT_DEVICE auto around_position(int64_t first, int64_t n) const {
    return by([&](const W* array, Compute otherwise) {
      return load_parameters_around<kCount>(array, first, n, otherwise);
    });
  }

 private:
  template <typename Load>
  DIGLOT_DEVICE auto by(Load load) const {
    const auto scale = load(params.weight, Compute(1));
    if constexpr (kIsCentered) {
      const auto shift = load(params.bias, Compute(0));
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
  static constexpr bool kStagesParams = true;
  using Staged = NormParameters<W>;
  static constexpr int kStagedBytes = (kIsCentered ? 2 : 1) * sizeof(W);

  NormParameters<W> params;
  Compute eps;
  Compute n;
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
  template <typename Visit, typename Sum>
  DIGLOT_DEVICE State reduce_together(Visit visit, int64_t count, Sum sum) const {
    Compute thread_sum = 0, squares = 0;
    visit([&](Compute x) { thread_sum += x; });
    const Compute elements = static_cast<Compute>(count);
    const Compute total = sum(thread_sum);  // by all lanes, also by those without a row
    const Compute center = count == 0 ? Compute(0) : total / elements;
    visit([&](Compute x) { squares = fma(x - center, x - center, squares); });
    return {elements, center, sum(squares)};
  }

  template <typename Stage>
  DIGLOT_DEVICE NormParameters<W> stage_params(Stage stage) const {
    return {stage(params.weight), stage(params.bias)};
  }

  DIGLOT_DEVICE NormMap<Compute, W, kIsCentered> map(const State& total) const {
    Compute center = 0, squares;
    if constexpr (kIsCentered) {
      center = total.mean, squares = total.squares;
    } else {
      squares = total.values[0];
    }
    const Compute factor = reciprocal_root(squares / n + eps);
    if (is_leader && rstd != nullptr) {
      if constexpr (kIsCentered) mean[row] = center;
      rstd[row] = factor;
    }
    return {center, factor, params};
  }
};

// The same for the sum of two arrays, rounded to their type. It stores that sum too.
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
