// What follows the sums of a tile on tensor cores, as epilogue.cuh says, where wgmma leaves them.
// Twin of triton_ops/lib/products/epilogue.py.
//
// A thread's sums are pairs of neighbours along the tile's columns. Pair p begins p / 2 * 8 columns
// after the thread's first sum, and p % 2 * 8 rows below it. So two rows share the bias of a pair,
// and a pair of the input is one word, where it is aligned. Addresses of a row's pairs differ by
// constants. All loads are on their way before one is used.
#pragma once

#include "diglot/products/epilogue.cuh"
#include "diglot/products/tma_store.cuh"

namespace diglot {

// Two elements. Those of 16 bits are one word, which takes one register until its use.
template <typename T>
struct Pair {
  std::conditional_t<sizeof(T) == 2, uint32_t, Vector<T, 2>> bits;

  DIGLOT_DEVICE float operator[](int i) const {
    Vector<T, 2> elements;
    memcpy(&elements, &bits, sizeof(elements));
    return convert<float>(elements[i]);
  }
};

// The same address, which the compiler must compute here. It would else keep those of all elements
// in registers.
template <typename T>
DIGLOT_DEVICE const T* hidden(const T* address) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(address));
#endif
  return address;
}

// Two elements, `step` apart. `left` of them exist; others are zeros. A word is loaded at once.
template <bool kIsWord, typename T>
DIGLOT_DEVICE Pair<T> load_pair(const T* from, int64_t step, int left) {
  Pair<T> pair{};
  if constexpr (kIsWord) {
    if (left > 0) pair.bits = *reinterpret_cast<const decltype(pair.bits)*>(from);
  } else {
    Vector<T, 2> elements{};
    if (left > 0) elements[0] = from[0];
    if (left > 1) elements[1] = from[step];
    memcpy(&pair.bits, &elements, sizeof(elements));
  }
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) asm volatile("" : "+r"(pair.bits));
#endif
  return pair;
}

// Whether pairs from an even element on are words, and have both their elements or none.
template <typename T>
DIGLOT_DEVICE bool has_words(const T* data, int64_t size) {
  return size % 2 == 0 && reinterpret_cast<uintptr_t>(data) % sizeof(Pair<T>) == 0;
}

// Where a thread's first sum is in a tile, whose rows of this warpgroup begin at `row`.
struct SumPlace {
  int row, column;
  static DIGLOT_DEVICE SumPlace of_thread(int row, int column) {
    const int thread = warpgroup_thread();
    return {row + accumulator_row(thread, 0), column + accumulator_column(thread, 0)};
  }
};

template <int kSums>
DIGLOT_DEVICE void scale(float (&sums)[kSums], float alpha) {
  if (alpha == 1) return;
  DIGLOT_UNROLL
  for (float& sum : sums) sum *= alpha;
}

// The bias of a thread's sums. It may be loaded before they are.
template <typename T, typename Shape>
struct TileBias {
  static constexpr bool kIsExchanged = Shape::kIsExchanged;
  Pair<T> pairs[kIsExchanged ? 1 : Shape::kColumns / 8];

  // Loads that of the tile's columns from kBegin to kEnd. Exchanged tiles have one for all.
  template <int kBegin = 0, int kEnd = Shape::kColumns>
  DIGLOT_DEVICE void load(const Epilogue<T>& epilogue, int row, int column) {
    if (epilogue.bias == nullptr) {
      // What no path defines would keep its registers on all paths that lead here.
      DIGLOT_UNROLL
      for (int i = kBegin; i < kEnd; i += 8) pairs[kIsExchanged ? 0 : i / 8] = {};
      return;
    }
    const SumPlace place = SumPlace::of_thread(row, column);
    const int n = static_cast<int>(epilogue.n);
    if constexpr (kIsExchanged) {
      const int left = place.row + 8 < n ? 2 : place.row < n;
      pairs[0] = load_pair<false>(epilogue.bias + place.row, 8, left);
    } else {
      const T* const from = epilogue.bias + place.column;
      const auto load = [&](auto is_word) {
        DIGLOT_UNROLL
        for (int i = kBegin; i < kEnd; i += 8) {
          pairs[i / 8] = load_pair<decltype(is_word)::value>(from + i, 1, n - place.column - i);
        }
      };
      has_words(epilogue.bias, n) ? load(std::true_type{}) : load(std::false_type{});
    }
  }

  // Adds it to the sums from kFirst on.
  template <int kFirst = 0, int kSums>
  DIGLOT_DEVICE void add(float (&sums)[kSums], const Epilogue<T>& epilogue) const {
    if (epilogue.bias != nullptr) {
      DIGLOT_UNROLL
      for (int i = 0; i < kSums; ++i) {
        sums[i] += kIsExchanged ? pairs[0][i / 2 % 2] : pairs[(kFirst + i) / 4][i % 2];
      }
    }
  }
};

// The elements of the epilogue's input beside a thread's sums.
template <typename T, typename Shape>
struct TileInput {
  static constexpr bool kIsExchanged = Shape::kIsExchanged;
  Pair<T> pairs[Shape::kSums / 2];

  // Loads those of the tile's columns from kBegin to kEnd.
  template <int kBegin, int kEnd>
  DIGLOT_DEVICE void load(const Epilogue<T>& epilogue, int row, int column) {
    if (epilogue.input == nullptr) {
      DIGLOT_UNROLL
      for (int i = kBegin / 4; i < kEnd / 4; ++i) pairs[i] = {};
      return;
    }
    const SumPlace place = SumPlace::of_thread(row, column + kBegin);
    const int m = static_cast<int>(epilogue.m), n = static_cast<int>(epilogue.n);
    const int rows = kIsExchanged ? n : m, columns = kIsExchanged ? m : n;
    const MatrixStrides strides = epilogue.of_input;
    const int64_t across = kIsExchanged ? strides.column : strides.row;
    const int64_t along = kIsExchanged ? strides.row : strides.column;
    const T* const first = epilogue.input + place.row * across + place.column * along;
    const auto load = [&](auto is_word, int below) {
      constexpr bool kIsWord = decltype(is_word)::value;
      const T* from = first + below * 8 * across;
      const int left = place.row + below * 8 < rows ? columns - place.column : 0;
      DIGLOT_UNROLL
      for (int i = 0; i < kEnd - kBegin; i += 8) {
        pairs[(kBegin + i) / 4 + below] =
            load_pair<kIsWord>(kIsWord ? from + i : from, along, left - i);
        if constexpr (!kIsWord) from = hidden(from + 8 * along);
      }
    };
    const bool is_word = along == 1 && across % 2 == 0 && has_words(epilogue.input, columns);
    DIGLOT_UNROLL
    for (int below = 0; below < 2; ++below) {
      is_word ? load(std::true_type{}, below) : load(std::false_type{}, below);
    }
  }

  // The element beside sum i.
  DIGLOT_DEVICE float operator[](int i) const { return pairs[i / 2][i % 2]; }
};

// Calls visit(sum, row, column) for each of a thread's sums that lies in C. Those of the warpgroup
// begin at `row` and `column` of all tiles.
template <bool kIsExchanged, int kSums, typename Visit>
DIGLOT_DEVICE void for_each_sum(float (&sums)[kSums], int row, int column, int m, int n,
                                Visit visit) {
  const int thread = warpgroup_thread();
  DIGLOT_UNROLL
  for (int i = 0; i < kSums; ++i) {
    const int across = row + accumulator_row(thread, i);
    const int along = column + accumulator_column(thread, i);
    const int line = kIsExchanged ? along : across, at = kIsExchanged ? across : along;
    if (line < m && at < n) visit(sums[i], line, at);
  }
}

// Finishes a consumer's rows of a tile, and stores them, part by part: TMA stores a part while the
// consumer computes the next. store(sums, column, is_before) rounds and stores the part that begins
// at this column of the tile, to `before` or to C.
template <typename T, typename Shape, typename Store>
DIGLOT_DEVICE void finish_parts(float (&sums)[Shape::kSums], const Epilogue<T>& epilogue, int row,
                                int column, Store store) {
  constexpr int kPartColumns = Shape::kPartPanels * Shape::kPanelColumns;
  // What a part needs is on its way while the part before is computed. Wide tiles leave no
  // registers for that.
  constexpr int kAhead = kPartColumns;
  const bool has_input = epilogue.input != nullptr;
  scale(sums, epilogue.alpha);
  TileBias<T, Shape> bias;
  TileInput<T, Shape> input;
  const auto load = [&](auto begin) {
    constexpr int kBegin = decltype(begin)::value, kLeft = Shape::kColumns - kBegin;
    constexpr int kEnd = kBegin + (kLeft < kPartColumns ? kLeft : kPartColumns);
    bias.template load<kBegin, kEnd>(epilogue, row, column);
    input.template load<kBegin, kEnd>(epilogue, row, column);
  };
  if constexpr (kAhead > 0) load(std::integral_constant<int, 0>{});
  for_each_part<Shape>(sums, [&](auto& part, auto first) {
    constexpr int kSums = sizeof(part) / sizeof(float);
    constexpr int kFirst = decltype(first)::value, kNext = kFirst + kAhead;
    if constexpr (kNext < Shape::kColumns) load(std::integral_constant<int, kNext>{});
    bias.template add<kFirst / 2>(part, epilogue);
    if (has_input && !epilogue.is_slope) {
      DIGLOT_UNROLL
      for (int i = 0; i < kSums; ++i) part[i] = fma(epilogue.beta, input[kFirst / 2 + i], part[i]);
    }
    if (epilogue.before != nullptr) store(part, kFirst, true);
    with_activation(epilogue.activation, [&](auto constant) {
      constexpr Activation kActivation = decltype(constant)::value;
      if (epilogue.is_slope) {
        DIGLOT_UNROLL
        for (int i = 0; i < kSums; ++i) {
          part[i] = activation_gradient<kActivation, T>(part[i], input[kFirst / 2 + i]);
        }
      } else {
        DIGLOT_UNROLL
        for (int i = 0; i < kSums; ++i) part[i] = activate<kActivation, T>(part[i]);
      }
    });
    store(part, kFirst, false);
  });
}

}  // namespace diglot
