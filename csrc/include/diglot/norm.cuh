// Layer norm and RMS norm of rows, and of the sum of two arrays: what rows are reduced and mapped
// by. Twin of triton_ops/lib/norm.py.
#pragma once

#include "diglot/row_reduce.cuh"

namespace diglot {

// Elements of a weight or a bias, in global or in shared memory, as they are computed with;
// `otherwise` if there is none.
template <int kCount, bool kIsNear, typename Compute, typename W>
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
      const auto loaded =
          unpack_computed<W>(kIsNear ? *reinterpret_cast<const uint4*>(from) : load_constant(from));
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) result[part + i] = loaded[i];
    }
  }
  return result;
}

// Of the elements of rows; null if there are none.
template <typename W>
struct NormParameters {
  const W* weight;
  const W* bias;
};

// (x - center) * factor * weight + bias.
template <typename Compute, typename W, bool kIsCentered, bool kIsNear_ = false>
struct NormMap {
  static constexpr bool kIsNear = kIsNear_;

  Compute center, factor;
  NormParameters<W> of;

  DIGLOT_DEVICE auto near(const NormParameters<W>& brought) const {
    return NormMap<Compute, W, kIsCentered, true>{center, factor, brought};
  }
  template <int kCount>
  DIGLOT_DEVICE auto at(int64_t first) const {
    const auto scale = load_parameters<kCount, kIsNear>(of.weight, first, Compute(1));
    if constexpr (kIsCentered) {
      const auto shift = load_parameters<kCount, kIsNear>(of.bias, first, Compute(0));
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
struct NormForward {
  using Compute = compute_t<T>;
  using Parameter = W;
  using State = std::conditional_t<kIsCentered, Moments<Compute>, Sums<Compute, 1>>;

  static constexpr bool kVisitsAbsent = !kIsCentered;
  static constexpr float kAbsent = 0;

  static constexpr bool kReducesTogether = kIsCentered;
  using Brought = NormParameters<W>;
  static constexpr int kBroughtBytes = (kIsCentered ? 2 : 1) * sizeof(W);

  NormParameters<W> of;
  Compute eps;
  Compute n;
  Compute* mean;  // of rows; null if not centred
  Compute* rstd;  // null: nobody asks for statistics
  int64_t row = 0;
  bool leads = false;

  DIGLOT_DEVICE NormForward of_row(const int64_t* offsets, bool is_first) const {
    NormForward result = *this;
    result.row = offsets[0], result.leads = is_first;
    return result;
  }

  template <typename Visit>
  DIGLOT_DEVICE State reduce(Visit visit, int count) const {
    if constexpr (kIsCentered) {
      Compute sum = 0, squares = 0;
      visit([&](Compute x) { sum += x; });
      const Compute own_mean = count == 0 ? Compute(0) : sum / static_cast<Compute>(count);
      visit([&](Compute x) { squares = fma(x - own_mean, x - own_mean, squares); });
      return {static_cast<Compute>(count), own_mean, squares};
    } else {
      State state = State::none();
      visit([&](Compute x) { state.of[0] = fma(x, x, state.of[0]); });
      return state;
    }
  }

  // Two sums take fewer instructions than means of parts that are combined.
  template <typename Visit, typename Sum>
  DIGLOT_DEVICE State reduce_together(Visit visit, int64_t count, Sum sum) const {
    Compute own = 0, squares = 0;
    visit([&](Compute x) { own += x; });
    const Compute elements = static_cast<Compute>(count);
    const Compute all = sum(own);  // by all lanes, those that have no row too
    const Compute center = count == 0 ? Compute(0) : all / elements;
    visit([&](Compute x) { squares = fma(x - center, x - center, squares); });
    return {elements, center, sum(squares)};
  }

  template <typename Bring>
  DIGLOT_DEVICE NormParameters<W> bring(Bring bring) const {
    return {bring(of.weight), bring(of.bias)};
  }

  DIGLOT_DEVICE NormMap<Compute, W, kIsCentered> map(const State& total) const {
    Compute center = 0, squares;
    if constexpr (kIsCentered) {
      center = total.mean, squares = total.squares;
    } else {
      squares = total.of[0];
    }
    const Compute factor = reciprocal_root(squares / n + eps);
    if (leads && rstd != nullptr) {
      if constexpr (kIsCentered) mean[row] = center;
      rstd[row] = factor;
    }
    return {center, factor, of};
  }
};

// The same of the sum of two arrays, rounded to their type, and that sum.
template <typename T, typename W, bool kIsCentered>
struct AddNormForward : NormForward<T, W, kIsCentered> {
  T* joined;

  DIGLOT_DEVICE static T join(T x, T y) {
    return convert<T>(convert<compute_t<T>>(x) + convert<compute_t<T>>(y));
  }
  DIGLOT_DEVICE AddNormForward of_row(const int64_t* offsets, bool is_first) const {
    AddNormForward result = *this;
    result.row = offsets[0], result.leads = is_first;
    return result;
  }
};

}  // namespace diglot
