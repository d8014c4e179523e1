// Products whose K is split: several blocks each sum a part of the steps along K of one tile. All
// tiles have as many parts, or those of the last round have helpers (HelpedRound).
// Twin of triton_ops/lib/products/split.py.
//
// Each leaves its sums in scratch and counts its arrival. The last to arrive adds up all parts in
// the order of K, whichever it is itself. So results do not depend on who is last.
//
// Or the blocks form a cluster, which Triton has not. Each finishes a share of the tile: the others
// send it their sums of that share, from registers to its shared memory, without a way through L2.
#pragma once

#include "diglot/atomics.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/products/ring.cuh"
#include "diglot/products/schedule.cuh"
#include "diglot/products/tma_store.cuh"
#include "diglot/sync/cluster.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

// sums = those of all parts, in the order of K. load(part, i) returns four, from sum i on. Where a
// part has few, loads of several parts are on their way at once.
template <int kSums, typename Load>
DIGLOT_DEVICE void add_in_order(float (&sums)[kSums], int parts, Load load) {
  constexpr int kVector = 4, kMost = 32, kAtOnce = kSums < kMost ? kMost / kSums : 1;
  DIGLOT_UNROLL
  for (float& sum : sums) sum = 0;
  const auto add = [&](const Vector<float, kVector>& loaded, int i) {
    DIGLOT_UNROLL
    for (int j = 0; j < kVector; ++j) sums[i + j] += loaded[j];
  };
  int part = 0;
  for (; part + kAtOnce <= parts && kAtOnce > 1; part += kAtOnce) {
    Vector<float, kVector> loaded[kAtOnce][kSums / kVector];
    DIGLOT_UNROLL
    for (int other = 0; other < kAtOnce; ++other) {
      DIGLOT_UNROLL
      for (int i = 0; i < kSums; i += kVector) loaded[other][i / kVector] = load(part + other, i);
    }
    DIGLOT_UNROLL
    for (int other = 0; other < kAtOnce; ++other) {
      DIGLOT_UNROLL
      for (int i = 0; i < kSums; i += kVector) add(loaded[other][i / kVector], i);
    }
  }
  for (; part < parts; ++part) {
    DIGLOT_UNROLL
    for (int i = 0; i < kSums; i += kVector) add(load(part, i), i);
  }
}

// The last consumer of a part of a tile gets the sums of the whole tile, and true; others get
// false. Warpgroup `consumer` of kConsumers calls it with its sums, and may use a named barrier.
template <int kConsumers, int kSums>
DIGLOT_DEVICE bool add_parts(float (&sums)[kSums], char* scratch, const SplitSchedule& schedule,
                             const TilePart& work, int consumer, int barrier) {
  constexpr int kVector = 4;
  __shared__ bool is_last[kConsumers];
  const int parts = schedule.parts_beside(work);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  uint32_t* const counter =
      reinterpret_cast<uint32_t*>(scratch) + work.number * kConsumers + consumer;
  // Neighbouring threads have neighbouring vectors. Parts after the first one follow one another.
  const auto sums_of = [&](int64_t slot) {
    return reinterpret_cast<float*>(scratch + kSplitCounterBytes) +
           (slot * kConsumers + consumer) * kSums * kWarpgroupThreads + thread * kVector;
  };
  constexpr int64_t kPart = int64_t{kConsumers} * kSums * kWarpgroupThreads;
  float* const first = sums_of(schedule.slot(work, 0));
  float* const second = sums_of(schedule.slot(work, 1));
  const auto place = [&](int part, int i) {
    return (part == 0 ? first : second + (part - 1) * kPart) + i * kWarpgroupThreads;
  };
  DIGLOT_UNROLL
  for (int i = 0; i < kSums; i += kVector) {
    store_vector<float, kVector>(place(work.part, i),
                                 {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
  }
  named_barrier_sync(barrier, kWarpgroupThreads);  // the arrival is that of all threads
  if (thread == 0) {
    const auto before = atomic_add_acquire_release(counter, 1);
    is_last[consumer] = static_cast<int>(before) == parts - 1;
    if (is_last[consumer]) *counter = 0;  // ready for the next launch
  }
  named_barrier_sync(barrier, kWarpgroupThreads);
  if (!is_last[consumer]) return false;
  add_in_order(sums, parts,
               [&](int part, int i) { return load_vector<float, kVector>(place(part, i)); });
  return true;
}

// The most blocks of a cluster that have parts of a tile: those whose sums the ring has room for.
// 1: the sums of a thread leave no registers for those of others.
constexpr int most_meeting(int rows, int columns, bool is_exchanged) {
  return columns > 224 && !is_exchanged ? 1 : rows > 64 ? 6 : 8;
}

// A consumer of a block that has part `rank` of a tile's K, while other blocks of the cluster have
// the others. A block has one part, so its barriers have one phase. `barrier` is a consumer's own.
template <typename Shape>
struct ClusterParts {
  static constexpr int kVector = 4, kConsuming = Shape::kConsumers * kWarpgroupThreads;
  // The columns of a part of a tile, which one block finishes, and a thread's sums of it.
  static constexpr int kColumns = Shape::kPartPanels * Shape::kPanelColumns, kPart = kColumns / 2;

  typename Shape::Shared& shared;
  int consumer, barrier, rank, parts;

  // Whether the ring has room for the sums that a block gets from all others.
  static constexpr bool has_room() {
    constexpr int kMost = (Shape::kColumns + kColumns - 1) / kColumns;  // parts of a tile
    for (int parts = 2; parts <= most_meeting(Shape::kRows, Shape::kColumns, Shape::kIsExchanged);
         ++parts) {
      const int received = (parts - 1) * ((kMost + parts - 1) / parts) * kPart * kConsuming;
      if (sizeof(float) * static_cast<unsigned>(received) > sizeof(shared.a) + sizeof(shared.b)) {
        return false;
      }
    }
    return true;
  }

  // Whether this block finishes the part of the tile that begins at this column.
  DIGLOT_DEVICE bool has(int column) const { return column / kColumns % parts == rank; }

  // Calls visit(part, owner, number) for the parts of a thread's sums. The block `owner` finishes
  // the part, as its first one or a later one.
  template <typename Visit>
  DIGLOT_DEVICE void for_each_owned(float (&sums)[Shape::kSums], Visit visit) const {
    int owner = 0, number = 0;
    for_each_part<Shape>(sums, [&](auto& part, auto) {
      visit(part, owner, number);
      if (++owner == parts) owner = 0, ++number;
    });
  }

  // Where its owner receives a thread's sums that the block `from` has of the part: bytes from the
  // beginning of shared memory. Neighbouring threads have neighbouring vectors.
  DIGLOT_DEVICE int offset(int from, int owner, int number) const {
    const int before = number * (parts - 1) + from - (from > owner);
    const int floats = (before * Shape::kConsumers + consumer) * kPart * kWarpgroupThreads;
    return (floats + warpgroup_thread() * kVector) * static_cast<int>(sizeof(float));
  }

  // Adds up, in the order of K, the sums that this block finishes.
  DIGLOT_DEVICE void add(float (&sums)[Shape::kSums]) const {
    static_assert(has_room());
    const int thread = warpgroup_thread();
    auto& [is_free, are_there] = shared.barriers.meetings[consumer];
    // All consumers of the block have read the tiles that were there.
    constexpr int kAll = 1 + Shape::kConsumers;  // the barrier's number
    named_barrier_sync(Shape::kConsumers > 1 ? kAll : barrier, kConsuming);
    cluster_wait();  // the others' barriers are ready
    if (thread < parts) is_free.release_at(thread);
    if (thread == 0) {
      int bytes = 0;
      for_each_owned(sums, [&](auto& part, int owner, int) {
        if (owner == rank)
          bytes += (parts - 1) * kWarpgroupThreads * static_cast<int>(sizeof(part));
      });
      are_there.arrive_expect(bytes);
    }
    wait_for_readers(is_free, 0);
    for_each_owned(sums, [&](auto& part, int owner, int number) {
      if (owner == rank) return;
      const uint32_t peer = cluster_address(shared_address(&shared), static_cast<uint32_t>(owner));
      const uint32_t to = peer + static_cast<uint32_t>(offset(rank, owner, number));
      const uint32_t signal = peer + shared_address(&are_there) - shared_address(&shared);
      DIGLOT_UNROLL
      for (int i = 0; i < static_cast<int>(sizeof(part) / sizeof(float)); i += kVector) {
        store_async(to + sizeof(float) * i * kWarpgroupThreads,
                    Vector<float, kVector>{part[i], part[i + 1], part[i + 2], part[i + 3]}, signal);
      }
    });
    are_there.wait(0);
    // Its own sums go through memory too: the same instructions then load all parts.
    float* const own = reinterpret_cast<float*>(shared.c[consumer]) + thread * kVector;
    static_assert(sizeof(shared.c[consumer]) >= sizeof(float) * kPart * kWarpgroupThreads);
    for_each_owned(sums, [&](auto& part, int owner, int number) {
      if (owner != rank) return;
      DIGLOT_UNROLL
      for (int i = 0; i < static_cast<int>(sizeof(part) / sizeof(float)); i += kVector) {
        // Not by store_vector, which is for global memory.
        *reinterpret_cast<Vector<float, kVector>*>(own + i * kWarpgroupThreads) = {
            part[i], part[i + 1], part[i + 2], part[i + 3]};
      }
      DIGLOT_UNROLL
      for (float& sum : part) sum = 0;
      // In a loop, whose code is there once: a small product fetches less of it.
      DIGLOT_NO_UNROLL
      for (int from = 0; from < parts; ++from) {
        const char* const received = reinterpret_cast<const char*>(&shared);
        const float* const added =
            from == rank ? own
                         : reinterpret_cast<const float*>(received + offset(from, rank, number));
        DIGLOT_UNROLL
        for (int i = 0; i < static_cast<int>(sizeof(part) / sizeof(float)); i += kVector) {
          const auto four =
              *reinterpret_cast<const Vector<float, kVector>*>(added + i * kWarpgroupThreads);
          DIGLOT_UNROLL
          for (int j = 0; j < kVector; ++j) part[i + j] += four[j];
        }
      }
    });
    named_barrier_sync(barrier, kWarpgroupThreads);  // C's tile takes the place of its own sums
  }
};

}  // namespace diglot
