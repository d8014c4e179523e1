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

// The bias of a thread's sums in kCount columns of a tile. It may be loaded before they are there.
template <typename T, typename Shape, int kCount = Shape::kColumns>
struct TileBias {
  static constexpr bool kIsExchanged = Shape::kIsExchanged;
  Pair<T> pairs[kIsExchanged ? 1 : kCount / 8];

  // Loads that of the columns from `column` on. Exchanged tiles have one for all.
  DIGLOT_DEVICE void load(const Epilogue<T>& epilogue, int row, int column) {
    if (epilogue.bias == nullptr) {
      // What no path defines would keep its registers on all paths that lead here.
      DIGLOT_UNROLL
      for (auto& pair : pairs) pair = {};
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
        for (int i = 0; i < kCount; i += 8) {
          pairs[i / 8] = load_pair<decltype(is_word)::value>(from + i, 1, n - place.column - i);
        }
      };
      has_words(epilogue.bias, n) ? load(std::true_type{}) : load(std::false_type{});
    }
  }

  DIGLOT_DEVICE void add(float (&sums)[kCount / 2], const Epilogue<T>& epilogue) const {
    if (epilogue.bias != nullptr) {
      DIGLOT_UNROLL
      for (int i = 0; i < kCount / 2; ++i) {
        sums[i] += kIsExchanged ? pairs[0][i / 2 % 2] : pairs[i / 4][i % 2];
      }
    }
  }
};

// The elements of the epilogue's input beside a thread's sums in kCount columns of a tile.
template <typename T, typename Shape, int kCount>
struct TileInput {
  static constexpr bool kIsExchanged = Shape::kIsExchanged;
  Pair<T> pairs[kCount / 4];

  // Loads those of the columns from `column` on.
  DIGLOT_DEVICE void load(const Epilogue<T>& epilogue, int row, int column) {
    if (epilogue.input == nullptr) {
      DIGLOT_UNROLL
      for (auto& pair : pairs) pair = {};
      return;
    }
    const SumPlace place = SumPlace::of_thread(row, column);
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
      for (int i = 0; i < kCount; i += 8) {
        pairs[i / 4 + below] = load_pair<kIsWord>(kIsWord ? from + i : from, along, left - i);
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

template <typename T, int kPart>
DIGLOT_DEVICE void activate_part(float (&part)[kPart], Activation activation) {
  with_activation(activation, [&](auto constant) {
    DIGLOT_UNROLL
    for (float& sum : part) sum = activate<decltype(constant)::value, T>(sum);
  });
}

// Finishes a consumer's rows of a tile, and stores them, part by part: TMA stores a part while the
// consumer computes the next. store(sums, column, is_before) rounds and stores the part that begins
// at this column of the tile, to `before` or to C.
template <typename T, typename Shape, typename Store>
DIGLOT_DEVICE void finish_parts(float (&sums)[Shape::kSums], const Epilogue<T>& epilogue, int row,
                                int column, Store store) {
  constexpr int kColumns = Shape::kPartPanels * Shape::kPanelColumns, kPart = kColumns / 2;
  static_assert(Shape::kColumns % kColumns == 0);
  const bool has_input = epilogue.input != nullptr;
  scale(sums, epilogue.alpha);
  TileBias<T, Shape, kColumns> bias, next_bias;
  TileInput<T, Shape, kColumns> input, next_input;
  next_bias.load(epilogue, row, column);
  next_input.load(epilogue, row, column);
  for_each_part_in_loop<Shape>(sums, [&](float (&part)[kPart], int first) {
    bias = next_bias;
    input = next_input;
    if (first + kColumns < Shape::kColumns) {  // on its way while this part is computed
      next_bias.load(epilogue, row, column + first + kColumns);
      next_input.load(epilogue, row, column + first + kColumns);
    }
    bias.add(part, epilogue);
    if (has_input && !epilogue.is_slope) {
      DIGLOT_UNROLL
      for (int i = 0; i < kPart; ++i) part[i] = fma(epilogue.beta, input[i], part[i]);
    }
    if (epilogue.before != nullptr) store(part, first, true);
    if (epilogue.is_slope) {
      with_activation(epilogue.activation, [&](auto constant) {
        DIGLOT_UNROLL
        for (int i = 0; i < kPart; ++i) {
          part[i] = activation_gradient<decltype(constant)::value, T>(part[i], input[i]);
        }
      });
    } else {
      activate_part<T>(part, epilogue.activation);
    }
    store(part, first, false);
  });
}

}  // namespace diglot
