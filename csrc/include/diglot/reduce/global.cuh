// All elements of an array reduced to one state, and then mapped by it, in one cooperative launch
// with a grid barrier in between. Twin of triton_ops/lib/reduce/global_.py.
//
// The array is cut into chunks by its size, its type and the room for states. One block reduces
// each chunk in a fixed order. After the barrier every block combines the states of all chunks,
// also in a fixed order. So no bit of a result depends on the number of blocks, or on which block
// took which chunk.
//
// A block keeps its last tile in registers across the barrier, and earlier ones in shared memory.
// It reads the rest again, the latest first, because L2 still has most of it.
#pragma once

#include <utility>

#include "diglot/reduce/warp_block.cuh"
#include "diglot/sync/grid_barrier.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// Few threads with many registers hold more elements than many threads with few, because each
// thread also needs some registers for other things.
constexpr int kGlobalThreads = 256;
// Resident blocks per SM, so that a thread has 128 registers.
constexpr int kGlobalBlocks = 2;
// The most accesses of a thread to each of kInputs arrays. The held elements must fit in its
// registers, and for one array also the wider accesses and arithmetic of types other than float.
template <typename T, int kInputs>
constexpr int kMostAccesses = kInputs == 1 && sizeof(T) == 4 ? 16 : 8;
// The most shared memory that a block uses for other purposes, with the part that the device
// reserves.
constexpr int kGlobalOtherBytes = 6 * 1024;

// n elements, cut into `count` chunks of `tiles` tiles each. The last tile may be short, and the
// last chunk may have empty tiles.
struct Chunks {
  int64_t n;
  int count;
  int tiles;
  int parking_bytes;  // of shared memory, where a block keeps tiles other than the last
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
    move_to(tile);
    const auto load_access = [&](int k, int a) {
      return *reinterpret_cast<const uint4*>(inputs.arrays[k] + start() + offset(a));
    };
    // All loads of a whole tile are in flight at once.
    if (has_row(kAccesses - 1)) {
      for_each_access([&](int k, int a) { held_[k][a] = load_access(k, a); });
    } else {
      for_each_access([&](int k, int a) {
        held_[k][a] = has_row(a) ? load_access(k, a) : load_split(inputs.arrays[k] + start(), a);
      });
    }
  }

  // To a slot in shared memory, and from there, as the tile of this number. A thread reads only
  // what it wrote itself.
  DIGLOT_DEVICE void park(int slot) const {
    for_each_access([&](int k, int a) { *smem_slot(slot, k, a) = held_[k][a]; });
  }
  DIGLOT_DEVICE void load_parked(int slot, int tile) {
    move_to(tile);
    for_each_access([&](int k, int a) { held_[k][a] = *smem_slot(slot, k, a); });
  }

  // State = operation.reduce(visit, count): visit(function) calls function with each of the
  // thread's `count` elements, one argument per input, always in the same order.
  template <typename Operation>
  DIGLOT_DEVICE typename Operation::State reduce(const Operation& operation) const {
    const auto numbers = std::make_integer_sequence<int, kInputs>{};
    if (count_ == kSize) {
      const auto visit = [&](auto function) { visit_if<true>(function, numbers); };
      return operation.reduce(visit, kAccesses * kElements);
    }
    int count = 0;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) count += elements_of(a);
    const auto visit = [&](auto function) { visit_if<false>(function, numbers); };
    return operation.reduce(visit, count);
  }

  // output = map(inputs...).
  template <typename Map>
  DIGLOT_DEVICE void store(const Map& map, T* output) const {
    output += start();
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const Accesses accesses = held_accesses(a);
      Vector<T> result;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        result[i] = convert<T>(call(map, accesses, i, std::make_integer_sequence<int, kInputs>{}));
      }
      if (has_row(a)) {
        store_vector(output + offset(a), result);
      } else {
        store_split(output, a, result);
      }
    }
  }

 private:
  DIGLOT_DEVICE int64_t start() const { return int64_t{tile_} * kSize; }
  DIGLOT_DEVICE void move_to(int tile) {
    tile_ = tile;
    const int64_t rest = chunks_.n - start();
    count_ = rest < 0 ? 0 : rest < kSize ? static_cast<int>(rest) : kSize;
  }
  DIGLOT_DEVICE static int offset(int a) {
    return (a * kGlobalThreads + static_cast<int>(threadIdx.x)) * kElements;
  }
  // Whether access `a` of every thread of the block exists and may have 16 bytes.
  DIGLOT_DEVICE bool has_row(int a) const { return chunks_.is_aligned && count_ >= (a + 1) * kRow; }

  template <typename Function>
  DIGLOT_DEVICE static void for_each_access(Function function) {
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) function(k, a);
    }
  }

  // Where arrays are not aligned, or end, the block's accesses are split into elements. These go
  // through shared memory, so that neighbouring threads access neighbours. All threads call this.
  DIGLOT_DEVICE uint4 load_split(const T* input, int a) const {
    if (count_ <= a * kRow) return {};
    Vector<T>* const row = shared_row();
    __syncthreads();
    for (int i = threadIdx.x; i < kRow; i += kGlobalThreads) {
      const int element = a * kRow + i;
      row[i / kElements][i % kElements] = element < count_ ? input[element] : T{};
    }
    __syncthreads();
    return pack(row[threadIdx.x]);
  }
  DIGLOT_DEVICE void store_split(T* output, int a, const Vector<T>& values) const {
    if (count_ <= a * kRow) return;
    Vector<T>* const row = shared_row();
    __syncthreads();
    row[threadIdx.x] = values;
    __syncthreads();
    DIGLOT_NO_UNROLL
    for (int i = threadIdx.x; i < kRow; i += kGlobalThreads) {
      const int element = a * kRow + i;
      if (element < count_) output[element] = row[i / kElements][i % kElements];
    }
  }
  DIGLOT_DEVICE static Vector<T>* shared_row() {
    __shared__ Vector<T> row[kGlobalThreads];
    return row;
  }

  DIGLOT_DEVICE static uint4* smem_slot(int slot, int k, int a) {
    extern __shared__ uint4 parked_accesses[];
    return parked_accesses + ((slot * kInputs + k) * kAccesses + a) * kGlobalThreads + threadIdx.x;
  }

  // The elements of an access that exist.
  DIGLOT_DEVICE int elements_of(int a) const {
    const int rest = count_ - offset(a);
    return rest < 0 ? 0 : rest < kElements ? rest : kElements;
  }

  // One access of each input.
  struct Accesses {
    Vector<T> inputs[kInputs];
  };
  DIGLOT_DEVICE Accesses held_accesses(int a) const {
    Accesses accesses;
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) accesses.inputs[k] = unpack<T>(held_[k][a]);
    return accesses;
  }
  template <typename Function, int... kInput>
  DIGLOT_DEVICE static auto call(const Function& function, const Accesses& accesses, int i,
                                 std::integer_sequence<int, kInput...>) {
    return function(convert<compute_t<T>>(accesses.inputs[kInput][i])...);
  }
  template <bool kWhole, typename Function, typename Numbers>
  DIGLOT_DEVICE void visit_if(Function function, Numbers numbers) const {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const Accesses accesses = held_accesses(a);
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (kWhole || offset(a) + i < count_) call(function, accesses, i, numbers);
      }
    }
  }

  uint4 held_[kInputs][kAccesses];
  const Chunks& chunks_;  // a kernel argument: it takes no registers
  int tile_ = 0;
  int count_ = 0;  // elements of the tile that exist
};

// output = operation.map(total)(inputs...), where `total` is the state of all elements. `partials`
// has room for chunks.count states, `barrier_state` is that of a GridBarrier. Every block calls it.
template <int kAccesses, typename T, int kInputs, typename Operation>
DIGLOT_DEVICE void reduce_then_map(const Chunks& chunks, uint32_t* barrier_state,
                                   typename Operation::State* partials, const Operation& operation,
                                   T* output, const Inputs<T, kInputs>& inputs) {
  using State = typename Operation::State;
  GridBarrier barrier(barrier_state);
  Tile<T, kInputs, kAccesses> tile(chunks);

  // The tiles of this block, and how many of them it has read.
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int block_tiles = (chunks.count - block + blocks - 1) / blocks * chunks.tiles;
  int read = 0;
  const int slots = chunks.parking_bytes / decltype(tile)::kBytes;
  for (int chunk = block; chunk < chunks.count; chunk += blocks) {
    State state = State::none();
    for (int t = 0; t < chunks.tiles; ++t) {
      tile.load(inputs, chunk * chunks.tiles + t);
      ++read;
      // The last tile stays in registers; those before it are parked.
      if (read < block_tiles && block_tiles - 1 - read < slots) tile.park(block_tiles - 1 - read);
      state = combine(state, tile.reduce(operation));
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

  if (block_tiles == 0) return;
  tile.store(map, output);
  for (int slot = 0; slot < block_tiles - 1; ++slot) {
    const int i = block_tiles - 2 - slot;
    const int number = (block + i / chunks.tiles * blocks) * chunks.tiles + i % chunks.tiles;
    if (slot < slots) {
      tile.load_parked(slot, number);
    } else {
      tile.load(inputs, number);
    }
    tile.store(map, output);
  }
}

}  // namespace diglot
