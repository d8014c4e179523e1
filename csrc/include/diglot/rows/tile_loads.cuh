// A thread's part of a tile of a row: where it lies, and its way to registers.
#pragma once

#include "diglot/rows/staging.cuh"

namespace diglot {

// A row is cut into tiles of one size, except that the last may be shorter.
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
    n_ = place.row < rows_.count ? rows_.n : 0;
    // Beyond the last row nothing is read: any address will do.
    starts_ = rows_.starts.offsets_by_loop(place.row < rows_.count ? place.row : 0);
    DIGLOT_UNROLL
    for (int k = 0; k < kInputs; ++k) inputs_[k] = inputs.arrays[k] + starts_.array[k + 1];
  }

  // The elements of a tile: the number of the first, and how many exist, of all threads.
  struct Range {
    int64_t first;
    int count;
  };
  DIGLOT_DEVICE Range range(int tile) const {
    const int size = place_.threads * (kAccesses * kAlong);
    const int64_t first = int64_t{tile} * size;
    const int64_t rest = n_ - first;
    return {first, rest < 0 ? 0 : rest < size ? static_cast<int>(rest) : size};
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
      set([&](int k, int a) { return read(range, k, a); });
    }
  }
  // From global memory to a slot in shared memory, asynchronously.
  DIGLOT_DEVICE void load_async(const Range& range, int slot) const {
    for_each_access([&](int k, int a) {
      if constexpr (Shape::kIsWide) {
        if (!exists(range, a, 0)) return;
        copy_async(&smem_slot(slot, k, a)->bits, address(range, k, a, 0));
      } else {
        *smem_slot(slot, k, a) = read(range, k, a);
      }
    });
  }
  // From a slot to registers. wait_for_copies comes before it.
  DIGLOT_DEVICE void load_staged(const Range& range, int slot) {
    set([&](int k, int a) { return exists(range, a, 0) ? *smem_slot(slot, k, a) : absent(); });
  }
  // To the L2 cache, for a tile that is loaded once registers are free.
  DIGLOT_DEVICE void prefetch_l2(const Range& range) const {
    for_each_access([&](int k, int a) {
      if (Shape::kIsWide && exists(range, a, 0)) prefetch(address(range, k, a, 0));
    });
  }

 protected:
  static constexpr bool kHasSteps = Shape::kTeam == Team::kColumns || !Shape::kIsWide;

  // The position of this thread's first element in a tile, and of element i of access a from there.
  DIGLOT_DEVICE int first_element() const { return place_.thread * (Shape::kIsWide ? kAlong : 1); }
  DIGLOT_DEVICE int elements_to(int a, int i) const {
    if constexpr (Shape::kIsWide) return a * place_.threads * kAlong + i % kAlong;
    return (a * kAlong + i % kAlong) * place_.threads;
  }
  DIGLOT_DEVICE bool exists(const Range& range, int a, int i) const {
    return first_element() + elements_to(a, Shape::kIsWide ? 0 : i) < range.count;
  }
  // The same distances in the memory of an array.
  DIGLOT_DEVICE int64_t offset(const Range& range, int array) const {
    return (range.first + first_element()) * (kHasSteps ? rows_.steps[array] : 1);
  }
  DIGLOT_DEVICE int64_t step(int a, int i, int array) const {
    if constexpr (kHasSteps) return elements_to(a, i) * rows_.steps[array];
    return elements_to(a, i);
  }
  DIGLOT_DEVICE const I* address(const Range& range, int k, int a, int i) const {
    return inputs_[k] + offset(range, k + 1) + step(a, i, k + 1);
  }

  // Calls function(a, exists, address) for the thread's accesses to a tile of columns of an array.
  // Each address is the last one plus a step, which takes few registers.
  template <typename T, typename Function>
  DIGLOT_DEVICE void step_through(const Range& range, T* data, int array, Function function) const {
    T* address = as_it_is(data + offset(range, array));
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(address));
#endif
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
  int64_t n_;
  const Rows<kArrays>& rows_;  // a kernel argument: it takes no registers

 private:
  // Sets the registers to read(k, a) of each input, joined if the operation joins.
  template <typename Read>
  DIGLOT_DEVICE void set(Read read) {
    if constexpr (Operation::kJoins) {
      HeldAccess inputs[kInputs][kAccesses];
      for_each_access([&](int k, int a) { inputs[k][a] = read(k, a); });
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const Access x = inputs[0][a].get(), y = inputs[1][a].get();
        Access joined;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) joined[i] = Operation::join(x[i], y[i]);
        held_[0][a] = HeldAccess::make(joined);
      }
    } else {
      for_each_access([&](int k, int a) { held_[k][a] = read(k, a); });
    }
  }

  DIGLOT_DEVICE HeldAccess read(const Range& range, int k, int a) const {
    if constexpr (Shape::kIsWide) {
      return exists(range, a, 0) ? HeldAccess{load_bits(address(range, k, a, 0))} : absent();
    } else {
      Access access;
      DIGLOT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        access[i] = exists(range, a, i) ? *address(range, k, a, i) : convert<I>(Operation::kAbsent);
      }
      return HeldAccess::make(access);
    }
  }
  DIGLOT_DEVICE static HeldAccess absent() {
    Access access;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) access[i] = convert<I>(Operation::kAbsent);
    return HeldAccess::make(access);
  }
  // This thread's access number `a` to input k of the tile in a slot of shared memory. A thread
  // reads what it copied itself, so that slots need no barrier.
  DIGLOT_DEVICE static HeldAccess* smem_slot(int slot, int k, int a) {
    extern __shared__ uint4 staged_accesses[];
    return reinterpret_cast<HeldAccess*>(staged_accesses) +
           ((slot * kInputs + k) * kAccesses + a) * Shape::kThreads + threadIdx.x;
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
