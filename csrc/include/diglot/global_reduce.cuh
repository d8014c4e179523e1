// All elements of an array reduced to one state, and then mapped by it, in one cooperative launch:
// a grid barrier lies in between. Twin of triton_ops/lib/global_reduce.py.
//
// Memory is cut into chunks, by the number of elements, their type and how many states there is
// by one block, in an order of its own, and after the barrier every block combines the states of
// all chunks in one order: no bit of a result depends on how many blocks there are, or on which of
// them took which chunk. What a block has read last it still holds in registers after the barrier;
// the rest it reads again, the latest first, of which L2 has the most.
#pragma once

#include <utility>

#include "diglot/grid_barrier.cuh"
#include "diglot/reduce.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

constexpr int kGlobalThreads = 512;
// On a multiprocessor: their registers are limited to 64 for that.
constexpr int kGlobalBlocks = 2;
// A block's tile is one, two, four or eight 16-byte accesses by each of its threads, the fewest
// with which there are no more tiles than this: on an H200, of 132 multiprocessors, each block then
// has at most one, and holds it.
constexpr int64_t kFewTiles = 256;
// Of one array a thread holds so many accesses at most; with more of the other types' elements, and
// their arithmetic, 64 registers would not be enough. Of two arrays, four of each.
template <typename T>
constexpr int kMostAccesses = sizeof(T) == 4 ? 8 : 4;
// The numbers of a state, at most.
constexpr int kMaxFields = 3;

// n elements, cut into `count` chunks of `tiles` tiles each; the last tile may be cut short, and
// the last chunk have tiles of nothing.
struct Chunks {
  int64_t n;
  int64_t count;
  int64_t tiles;
  bool is_aligned;  // every array starts at a multiple of 16 bytes
};

template <typename T, int kInputs>
struct Inputs {
  const T* of[kInputs];
};

// A thread's part of a tile: whole accesses, kGlobalThreads of them apart.
template <typename T, int kInputs, int kAccesses>
class Tile {
 public:
  static constexpr int kElements = kAccessBytes / sizeof(T);
  static constexpr int kSize = kGlobalThreads * kAccesses * kElements;

  DIGLOT_DEVICE void load(const Chunks& chunks, const Inputs<T, kInputs>& inputs, int64_t tile) {
    start_ = tile * kSize;
    const int64_t left = chunks.n - start_;
    left_ = left < 0 ? 0 : left < kSize ? static_cast<int>(left) : kSize;
    is_aligned_ = chunks.is_aligned;
    if (has_vectors()) {
      for_each_access([&](int k, int a) {
        held_[k][a] = *reinterpret_cast<const uint4*>(inputs.of[k] + start_ + at(a));
      });
    } else {
      for_each_access([&](int k, int a) { held_[k][a] = load_split(inputs.of[k] + start_, a); });
    }
  }

  // State = operation.reduce(visit, count): visit(function) calls function with each of the
  // thread's `count` elements, one argument per input, always in the same order.
  template <typename Operation>
  DIGLOT_DEVICE typename Operation::State reduce(const Operation& operation) const {
    const auto numbers = std::make_integer_sequence<int, kInputs>{};
    if (left_ == kSize) {
      const auto visit = [&](auto function) { visit_if<true>(function, numbers); };
      return operation.reduce(visit, kAccesses * kElements);
    }
    int count = 0;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) count += elements_at(a);
    const auto visit = [&](auto function) { visit_if<false>(function, numbers); };
    return operation.reduce(visit, count);
  }

  // output = map(inputs...).
  template <typename Map>
  DIGLOT_DEVICE void store(const Map& map, T* output) const {
    output += start_;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const Accesses accesses = accesses_at(a);
      Vector<T> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        result[i] = convert<T>(call(map, accesses, i, std::make_integer_sequence<int, kInputs>{}));
      }
      if (has_vectors()) {
        store_vector(output + at(a), result);
      } else {
        store_split(output, a, result);
      }
    }
  }

 private:
  DIGLOT_DEVICE static int at(int a) {
    return (a * kGlobalThreads + static_cast<int>(threadIdx.x)) * kElements;
  }
  DIGLOT_DEVICE bool has_vectors() const { return is_aligned_ && left_ == kSize; }

  template <typename Function>
  DIGLOT_DEVICE static void for_each_access(Function function) {
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) function(k, a);
    }
  }

  // Where arrays are not aligned, or end, a block's accesses are split into elements. They go
  // through shared memory, so that neighbouring threads access neighbours. All threads call these.
  DIGLOT_DEVICE uint4 load_split(const T* input, int a) const {
    Vector<T>* const row = shared_row();
    __syncthreads();
    for (int i = threadIdx.x; i < kRow; i += kGlobalThreads) {
      const int at = a * kRow + i;
      row[i / kElements][i % kElements] = at < left_ ? input[at] : T{};
    }
    __syncthreads();
    return pack(row[threadIdx.x]);
  }
  DIGLOT_DEVICE void store_split(T* output, int a, const Vector<T>& values) const {
    Vector<T>* const row = shared_row();
    __syncthreads();
    row[threadIdx.x] = values;
    __syncthreads();
    for (int i = threadIdx.x; i < kRow; i += kGlobalThreads) {
      const int at = a * kRow + i;
      if (at < left_) output[at] = row[i / kElements][i % kElements];
    }
  }
  static constexpr int kRow = kGlobalThreads * kElements;
  DIGLOT_DEVICE static Vector<T>* shared_row() {
    __shared__ Vector<T> row[kGlobalThreads];
    return row;
  }

  // Elements of an access that are there.
  DIGLOT_DEVICE int elements_at(int a) const {
    const int left = left_ - at(a);
    return left < 0 ? 0 : left < kElements ? left : kElements;
  }

  // One of each input.
  struct Accesses {
    Vector<T> of[kInputs];
  };
  DIGLOT_DEVICE Accesses accesses_at(int a) const {
    Accesses accesses;
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) accesses.of[k] = unpack<T>(held_[k][a]);
    return accesses;
  }
  template <typename Function, int... kInput>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i,
                                 std::integer_sequence<int, kInput...>) {
    return function(convert<compute_t<T>>(accesses.of[kInput][i])...);
  }
  template <bool kWhole, typename Function, typename Numbers>
  DIGLOT_DEVICE void visit_if(Function function, Numbers numbers) const {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const Accesses accesses = accesses_at(a);
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (kWhole || at(a) + i < left_) call(function, accesses, i, numbers);
      }
    }
  }

  uint4 held_[kInputs][kAccesses];
  int64_t start_ = 0;
  int left_ = 0;  // elements of the tile that are there
  bool is_aligned_ = false;
};

// output = operation.map(total)(inputs...), where total is the state of all elements. `partials`
// has room for chunks.count states. Every block calls it.
template <int kAccesses, typename T, int kInputs, typename Operation>
DIGLOT_DEVICE void reduce_then_map(const Chunks& chunks, uint32_t* word,
                                   typename Operation::State* partials, const Operation& operation,
                                   T* output, const Inputs<T, kInputs>& inputs) {
  using State = typename Operation::State;
  GridBarrier barrier(word);
  Tile<T, kInputs, kAccesses> held;

  int64_t own = 0;  // tiles
  for (int64_t chunk = blockIdx.x; chunk < chunks.count; chunk += gridDim.x) {
    State state = State::none();
    for (int64_t tile = 0; tile < chunks.tiles; ++tile) {
      held.load(chunks, inputs, chunk * chunks.tiles + tile);
      state = combine(state, held.reduce(operation));
    }
    state = block_reduce<kGlobalThreads>(state);
    if (threadIdx.x == 0) partials[chunk] = state;
    own += chunks.tiles;
  }

  barrier.sync();

  State total = State::none();
  for (int64_t chunk = threadIdx.x; chunk < chunks.count; chunk += kGlobalThreads) {
    total = combine(total, partials[chunk]);
  }
  const auto map = operation.map(block_reduce<kGlobalThreads>(total));

  if (own == 0) return;
  held.store(map, output);
  for (int64_t i = own - 2; i >= 0; --i) {
    const int64_t chunk = blockIdx.x + i / chunks.tiles * gridDim.x;
    held.load(chunks, inputs, chunk * chunks.tiles + i % chunks.tiles);
    held.store(map, output);
  }
}

}  // namespace diglot
