// All elements of an array reduced to one state, and then mapped by it, in one cooperative launch:
// a grid barrier lies in between. Twin of triton_ops/lib/global_reduce.py.
//
// Memory is cut into chunks, by the number of elements, their type and how many states there is
// room for. Each chunk is reduced by one block, in an order of its own, and after the barrier every
// block combines the states of all chunks in one order: no bit of a result depends on how many
// blocks there are, or on which of them took which chunk. What a block has read last it still holds
// in registers after the barrier, and what it read before that in shared memory; the rest it reads
// again, the latest first, of which L2 has the most.
#pragma once

#include <utility>

#include "diglot/grid_barrier.cuh"
#include "diglot/reduce.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// Few threads with many registers hold more than many with few: what a thread needs beside the
// elements that it holds is the same.
constexpr int kGlobalThreads = 256;
// On a multiprocessor: a thread has 128 registers.
constexpr int kGlobalBlocks = 2;
// A block's tile is one, two, four, eight or sixteen 16-byte accesses by each of its threads. To
// each of kInputs arrays a thread makes so many at most: what it holds of them, and where there is
// one array, more elements in an access and the arithmetic of other types than float, together must
// fit in its registers.
template <typename T, int kInputs>
constexpr int kMostAccesses = kInputs == 1 && sizeof(T) == 4 ? 16 : 8;
// Of shared memory, what a block takes for other things, and the device beside it, at most.
constexpr int kGlobalOtherBytes = 6 * 1024;

// n elements, cut into `count` chunks of `tiles` tiles each; the last tile may be cut short, and
// the last chunk have tiles of nothing.
struct Chunks {
  int64_t n;
  int count;
  int tiles;
  int parking_bytes;  // of shared memory, in which a block keeps tiles beside the last
  bool is_aligned;    // every array starts at a multiple of 16 bytes
};

// A thread's part of a tile: whole accesses, kGlobalThreads of them apart.
template <typename T, int kInputs, int kAccesses>
class Tile {
 public:
  static constexpr int kElements = kAccessBytes / sizeof(T);
  static constexpr int kRow = kGlobalThreads * kElements;
  static constexpr int kSize = kAccesses * kRow;
  static constexpr int kBytes = kInputs * kAccesses * kGlobalThreads * kAccessBytes;

  DIGLOT_DEVICE explicit Tile(const Chunks& chunks) : chunks_(chunks) {}

  DIGLOT_DEVICE void load(const Inputs<T, kInputs>& inputs, int tile) {
    go_to(tile);
    const auto load_access = [&](int k, int a) {
      return *reinterpret_cast<const uint4*>(inputs.of[k] + start() + at(a));
    };
    // Of a whole tile, all loads are in flight at once.
    if (has_row(kAccesses - 1)) {
      for_each_access([&](int k, int a) { held_[k][a] = load_access(k, a); });
    } else {
      for_each_access([&](int k, int a) {
        held_[k][a] = has_row(a) ? load_access(k, a) : load_split(inputs.of[k] + start(), a);
      });
    }
  }

  // To a place in shared memory, and from there, where it is the tile of this number. A thread has
  // parts of its own.
  DIGLOT_DEVICE void park(int place) const {
    for_each_access([&](int k, int a) { *parked(place, k, a) = held_[k][a]; });
  }
  DIGLOT_DEVICE void take(int place, int tile) {
    go_to(tile);
    for_each_access([&](int k, int a) { held_[k][a] = *parked(place, k, a); });
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
    output += start();
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const Accesses accesses = accesses_at(a);
      Vector<T> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        result[i] = convert<T>(call(map, accesses, i, std::make_integer_sequence<int, kInputs>{}));
      }
      if (has_row(a)) {
        store_vector(output + at(a), result);
      } else {
        store_split(output, a, result);
      }
    }
  }

 private:
  DIGLOT_DEVICE int64_t start() const { return int64_t{tile_} * kSize; }
  DIGLOT_DEVICE void go_to(int tile) {
    tile_ = tile;
    const int64_t left = chunks_.n - start();
    left_ = left < 0 ? 0 : left < kSize ? static_cast<int>(left) : kSize;
  }
  DIGLOT_DEVICE static int at(int a) {
    return (a * kGlobalThreads + static_cast<int>(threadIdx.x)) * kElements;
  }
  // Whether the block's accesses of this number are whole, and of 16 bytes.
  DIGLOT_DEVICE bool has_row(int a) const { return chunks_.is_aligned && left_ >= (a + 1) * kRow; }

  template <typename Function>
  DIGLOT_DEVICE static void for_each_access(Function function) {
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) function(k, a);
    }
  }

  // Where arrays are not aligned, or end, a row of a block's accesses is split into elements. They
  // go through shared memory, so that neighbouring threads access neighbours. All threads call
  // these.
  DIGLOT_DEVICE uint4 load_split(const T* input, int a) const {
    if (left_ <= a * kRow) return {};
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
    if (left_ <= a * kRow) return;
    Vector<T>* const row = shared_row();
    __syncthreads();
    row[threadIdx.x] = values;
    __syncthreads();
    DIGLOT_NO_UNROLL
    for (int i = threadIdx.x; i < kRow; i += kGlobalThreads) {
      const int at = a * kRow + i;
      if (at < left_) output[at] = row[i / kElements][i % kElements];
    }
  }
  DIGLOT_DEVICE static Vector<T>* shared_row() {
    __shared__ Vector<T> row[kGlobalThreads];
    return row;
  }

  DIGLOT_DEVICE static uint4* parked(int place, int k, int a) {
    extern __shared__ uint4 parked_accesses[];
    return parked_accesses + ((place * kInputs + k) * kAccesses + a) * kGlobalThreads + threadIdx.x;
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
  // In registers, of which there are few, what is not among the kernel's arguments.
  const Chunks& chunks_;
  int tile_ = 0;
  int left_ = 0;  // elements of the tile that are there
};

// output = operation.map(total)(inputs...), where total is the state of all elements. `partials`
// has room for chunks.count states. Every block calls it.
template <int kAccesses, typename T, int kInputs, typename Operation>
DIGLOT_DEVICE void reduce_then_map(const Chunks& chunks, uint32_t* word,
                                   typename Operation::State* partials, const Operation& operation,
                                   T* output, const Inputs<T, kInputs>& inputs) {
  using State = typename Operation::State;
  GridBarrier barrier(word);
  Tile<T, kInputs, kAccesses> held(chunks);

  // Tiles of this block, and how many of them have been read.
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int own = (chunks.count - block + blocks - 1) / blocks * chunks.tiles;
  int read = 0;
  const int places = chunks.parking_bytes / decltype(held)::kBytes;
  for (int chunk = block; chunk < chunks.count; chunk += blocks) {
    State state = State::none();
    for (int tile = 0; tile < chunks.tiles; ++tile) {
      held.load(inputs, chunk * chunks.tiles + tile);
      ++read;
      // Of the latest tiles, the last is not parked.
      if (read < own && own - 1 - read < places) held.park(own - 1 - read);
      state = combine(state, held.reduce(operation));
    }
    state = block_reduce<kGlobalThreads>(state);
    if (threadIdx.x == 0) partials[chunk] = state;
  }

  barrier.sync();

  State total = State::none();
  for (int chunk = static_cast<int>(threadIdx.x); chunk < chunks.count; chunk += kGlobalThreads) {
    total = combine(total, partials[chunk]);
  }
  const auto map = operation.map(block_reduce<kGlobalThreads>(total));

  if (own == 0) return;
  held.store(map, output);
  for (int later = 0; later < own - 1; ++later) {
    const int i = own - 2 - later;
    const int tile = (block + i / chunks.tiles * blocks) * chunks.tiles + i % chunks.tiles;
    if (later < places) {
      held.take(later, tile);
    } else {
      held.load(inputs, tile);
    }
    held.store(map, output);
  }
}

}  // namespace diglot
