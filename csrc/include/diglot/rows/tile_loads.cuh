// A thread's part of a tile of a row: where it lies, and its way to registers.
#pragma once

#include "diglot/reduce/warp_block.cuh"
#include "diglot/rows/operation.cuh"
#include "diglot/rows/place.cuh"

namespace diglot {

// A row is cut into tiles of one size, except that the last may be shorter. Blocks of a cluster
// have one each.
//
// The tiles of a peeled row begin at the last multiple of 16 bytes that is not behind the row's
// start. All arrays of the row lie alike, so each has the same number of elements before its start.
// Those are absent, like the elements behind its end. An access with absent elements is partial: it
// goes element by element. All others have 16 bytes.
template <typename Shape, typename Operation, typename I, int kInputs, int kArrays>
class RowTileLoads {
 public:
  static constexpr int kElements = Shape::template kElements<I>;
  static constexpr int kAlong = Shape::template kAlong<I>;
  static constexpr int kRows = Shape::template kRows<I>;
  static constexpr int kAccesses = Shape::kAccesses;
  static constexpr int kHeld = Operation::kJoins ? 1 : kInputs;  // arrays in registers
  using Access = Vector<I, kElements>;
  using HeldAccess = Held<I, kElements>;

  DIGLOT_DEVICE RowTileLoads(const Rows<kArrays>& rows, const RowPlace<Shape>& place,
                             const Inputs<I, kInputs>& inputs)
      : place_(place), rows_(rows) {
    move_to(place, inputs);
  }
  DIGLOT_DEVICE void move_to(const RowPlace<Shape>& place, const Inputs<I, kInputs>& inputs) {
    place_ = place;
    const bool is_row = place.row < rows_.count;
    // Nothing is read beyond the last row, so any address will do there.
    starts_ = rows_.starts.offsets_by_loop(is_row ? place.row : 0);
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) inputs_[k] = inputs.arrays[k] + starts_.array[k + 1];
    skipped_ = 0;
    if constexpr (Shape::kIsPeeled) {
      skipped_ = is_row ? elements_since_alignment(inputs_[0]) : 0;
      DIGLOT_UNROLL
      for (int k = 0; k < kInputs; ++k) inputs_[k] -= skipped_;
      starts_.array[0] -= skipped_;
    }
    n_ = is_row ? rows_.n + skipped_ : 0;
  }

  // The elements of a tile: the number of the first, the end of those that exist in the team, and
  // how many at the tile's start do not exist.
  struct Range {
    int64_t first;
    int count;
    int skipped;

    DIGLOT_DEVICE int elements() const { return count - skipped; }
  };
  DIGLOT_DEVICE Range range(int tile) const {
    constexpr bool kIsCluster = Shape::kTeam == Team::kCluster;
    const int size = kIsCluster ? rows_.part : place_.threads * (kAccesses * kAlong);
    // A row in registers has less than 2^31 elements.
    using Index = std::conditional_t<Shape::kWalk == Walk::kResident, int, int64_t>;
    const Index first = Index{tile} * size;
    const Index rest = static_cast<Index>(n_) - first;
    return {first,
            rest < 0      ? 0
            : rest < size ? static_cast<int>(rest)
                          : size,
            tile == 0 ? skipped_ : 0};
  }

  // From global memory to registers.
  DIGLOT_DEVICE void load(const Range& range) {
    if constexpr (Shape::kIsChunked) {
      static_assert(!Operation::kJoins, "split columns have no join()");
      DIGLOT_UNROLL
      for (int k = 0; k < kInputs; ++k) {
        step_through(range, inputs_[k], k + 1, [&](int a, bool exists, const I* address) {
          held_[k][a] = exists ? load_held(address) : absent();
        });
      }
    } else {
      const I* starts[kInputs];  // of the thread's accesses: computed once
      DIGLOT_UNROLL
      for (int k = 0; k < kInputs; ++k) starts[k] = as_it_is(inputs_[k] + offset(range, k + 1));
      set([&](int k, int a) {
        if constexpr (Shape::kIsWide) {
          return HeldAccess{
              load_kept(step_from(starts[k], a, 0, k + 1), is_whole(range, a), absent().bits)};
        } else {
          return read_elements(range, starts[k], k, a);
        }
      });
      // After all others, which are then in flight already.
      for_each_partial(range, [&](int partial) {
        HeldAccess inputs[kInputs];
        DIGLOT_UNROLL
        for (int k = 0; k < kInputs; ++k) {
          inputs[k] = read_elements(range, address(range, k, 0, 0), k, partial);
        }
        DIGLOT_UNROLL
        for (int a = 0; a < kAccesses; ++a) {
          if (a == partial) set_access(a, [&](int k) { return inputs[k]; });
        }
      });
    }
  }
  // From global memory to a slot in shared memory, asynchronously.
  DIGLOT_DEVICE void load_async(const Range& range, int slot) const {
    for_each_access([&](int k, int a) {
      if constexpr (Shape::kIsWide) {
        if (!is_whole(range, a)) return;
        copy_async(&smem_slot(slot, k, a)->bits, address(range, k, a, 0));
      } else {
        *smem_slot(slot, k, a) = read_elements(range, address(range, k, 0, 0), k, a);
      }
    });
    for_each_partial(range, [&](int a) {
      DIGLOT_UNROLL
      for (int k = 0; k < kInputs; ++k) {
        *smem_slot(slot, k, a) = read_elements(range, address(range, k, 0, 0), k, a);
      }
    });
  }
  // From a slot to registers. wait_for_copies must come before it.
  DIGLOT_DEVICE void load_staged(const Range& range, int slot) {
    set([&](int k, int a) {
      return position(a, 0) < range.count ? *smem_slot(slot, k, a) : absent();
    });
  }
  // To the L2 cache, for a tile that is loaded once registers are free.
  DIGLOT_DEVICE void prefetch_l2(const Range& range) const {
    for_each_access([&](int k, int a) {
      if (Shape::kIsWide && is_whole(range, a)) prefetch(address(range, k, a, 0));
    });
  }

 protected:
  static constexpr bool kHasSteps =
      Shape::kTeam == Team::kColumns || Shape::kWidth == Width::kNarrow;

  // The position of this thread's first element in a tile, and of element i of access a relative to
  // it.
  DIGLOT_DEVICE int first_element() const { return place_.thread * (Shape::kIsWide ? kAlong : 1); }
  DIGLOT_DEVICE int elements_to(int a, int i) const {
    if constexpr (Shape::kIsWide) return a * place_.threads * kAlong + i % kAlong;
    return (a * kAlong + i % kAlong) * place_.threads;
  }
  DIGLOT_DEVICE int position(int a, int i) const { return first_element() + elements_to(a, i); }
  DIGLOT_DEVICE bool exists(const Range& range, int a, int i) const {
    const int element = elements_to(a, Shape::kWidth == Width::kWide ? 0 : i);
    return element < range.count - first_element() &&
           (!Shape::kIsPeeled || element >= range.skipped - first_element());
  }
  // Whether all elements of an access by 16 bytes exist.
  DIGLOT_DEVICE bool is_whole(const Range& range, int a) const {
    return exists(range, a, 0) && (!Shape::kIsPeeled || exists(range, a, kElements - 1));
  }
  // Whether the access exists for any thread of the team. If not, no later one does.
  DIGLOT_DEVICE bool is_used(const Range& range, int a) const {
    return Shape::kTeam == Team::kColumns || elements_to(a, 0) < range.count;
  }
  // How many elements of a row the lanes hold together: all of it, or one warp's share of a block's
  // row.
  DIGLOT_DEVICE int elements_of_lanes(const Range& range) const {
    if constexpr (Shape::kTeam == Team::kLanes) return range.elements();
    constexpr int kOfWarp = kWarpLanes * kAlong;
    int elements = 0;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      const int first = place_.thread / kWarpLanes * kOfWarp + elements_to(a, 0);
      const int end = first + kOfWarp < range.count ? first + kOfWarp : range.count;
      const int begin = first > range.skipped ? first : range.skipped;
      elements += end > begin ? end - begin : 0;
    }
    return elements;
  }
  // Calls function(a) for each partial access of the thread.
  template <typename Function>
  DIGLOT_DEVICE void for_each_partial(const Range& range, Function function) const {
    if constexpr (Shape::kIsPeeled) {
      unsigned partial = 0;  // bit a is set if access a is partial
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        partial |= unsigned{position(a, 0) < range.count && !is_whole(range, a)} << a;
      }
      // Each lane goes to its own, all at once.
      DIGLOT_NO_UNROLL
      for (; partial != 0; partial &= partial - 1) function(lowest_bit(partial));
    }
  }
  // The same distance in the memory of an array.
  DIGLOT_DEVICE int64_t offset(const Range& range, int array) const {
    return (range.first + first_element()) * (kHasSteps ? rows_.steps[array] : 1);
  }
  template <typename T>
  DIGLOT_DEVICE T* step_from(T* first, int a, int i, int array) const {
    if constexpr (kHasSteps) return first + elements_to(a, i) * rows_.steps[array];
    return further(first, elements_to(a, i));
  }
  DIGLOT_DEVICE const I* address(const Range& range, int k, int a, int i) const {
    return step_from(inputs_[k] + offset(range, k + 1), a, i, k + 1);
  }

  // Calls function(a, exists, address) for the thread's accesses to a tile of columns. Each address
  // is the previous one plus a step, which takes few registers.
  template <typename T, typename Function>
  DIGLOT_DEVICE void step_through(const Range& range, T* data, int array, Function function) const {
    T* address = as_it_is(data + offset(range, array));
    const int64_t stride = rows_.steps[array] * place_.threads;
    int rest = range.count - place_.thread;
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      function(a, rest > 0, address);
      address += stride, rest -= place_.threads;
    }
  }

  HeldAccess held_[kHeld][kAccesses];
  const I* inputs_[kInputs];
  typename Strides<kArrays, int64_t>::Offsets starts_;
  RowPlace<Shape> place_;
  int64_t n_;                  // elements of the row, with the skipped ones
  int skipped_;                // elements before the row's start
  const Rows<kArrays>& rows_;  // a kernel argument: it takes no registers

 private:
  // Sets the registers to read(k, a) of each input, or to the joined inputs.
  template <typename Read>
  DIGLOT_DEVICE void set(Read read) {
    if constexpr (Operation::kJoins) {
      HeldAccess inputs[kInputs][kAccesses];
      for_each_access([&](int k, int a) { inputs[k][a] = read(k, a); });
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) set_access(a, [&](int k) { return inputs[k][a]; });
    } else {
      for_each_access([&](int k, int a) { held_[k][a] = read(k, a); });
    }
  }
  template <typename Read>
  DIGLOT_DEVICE void set_access(int a, Read read) {
    if constexpr (Operation::kJoins) {
      const Access x = read(0).get(), y = read(1).get();
      Access joined;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) joined[i] = Operation::join(x[i], y[i]);
      held_[0][a] = HeldAccess::make(joined);
    } else {
      DIGLOT_UNROLL
      for (int k = 0; k < kInputs; ++k) held_[k][a] = read(k);
    }
  }

  // `start`: of the thread's accesses to input k.
  DIGLOT_DEVICE HeldAccess read_elements(const Range& range, const I* start, int k, int a) const {
    Access access;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      access[i] =
          exists(range, a, i) ? *step_from(start, a, i, k + 1) : convert<I>(Operation::kAbsent);
    }
    return HeldAccess::make(access);
  }
  DIGLOT_DEVICE static HeldAccess absent() {
    Access access;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) access[i] = convert<I>(Operation::kAbsent);
    return HeldAccess::make(access);
  }
  // This thread's access number `a` to input k of the tile in a slot of shared memory. A thread
  // reads only what it copied itself, so slots need no barrier.
  DIGLOT_DEVICE static HeldAccess* smem_slot(int slot, int k, int a) {
    extern __shared__ uint4 staged_accesses[];
    return reinterpret_cast<HeldAccess*>(staged_accesses) +
           ((slot * kInputs + k) * kAccesses + a) * static_cast<int>(blockDim.x) + threadIdx.x;
  }
  DIGLOT_DEVICE static uint4 load_bits(const I* address) {
    return *reinterpret_cast<const uint4*>(address);
  }
  DIGLOT_DEVICE static HeldAccess load_held(const I* address) {
    if constexpr (Shape::kIsWide) {
      return {load_bits(address)};
    } else {
      return HeldAccess::make({*address});
    }
  }
  template <typename Function>
  DIGLOT_DEVICE static void for_each_access(Function function) {
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) function(k, a);
    }
  }
};

}  // namespace diglot
