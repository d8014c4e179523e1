// Products whose K is split: several blocks each sum a part of the steps along K of one tile.
// Twin of triton_ops/lib/products/split.py.
//
// Each leaves its sums in scratch and counts its arrival. The last to arrive adds up all parts in
// the order of K, whichever it is itself. So results do not depend on who is last.
//
// Or the blocks form a cluster, which Triton has not. Each leaves its sums in its shared memory,
// where the others read them, without a way through L2. Each finishes a share of the tile.
#pragma once

#include "diglot/atomics.cuh"
#include "diglot/mma/warpgroup.cuh"
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
DIGLOT_DEVICE bool add_parts(float (&sums)[kSums], char* scratch, const TilePart& work, int parts,
                             int consumer, int barrier) {
  constexpr int kVector = 4;
  __shared__ bool is_last[kConsumers];
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  uint32_t* const counter =
      reinterpret_cast<uint32_t*>(scratch) + work.number * kConsumers + consumer;
  // Neighbouring threads have neighbouring vectors.
  const auto place = [&](int part, int i) {
    const int64_t number = (work.number * parts + part) * kConsumers + consumer;
    return reinterpret_cast<float*>(scratch + kSplitCounterBytes) +
           (number * kSums + i) * kWarpgroupThreads + thread * kVector;
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

// A consumer of a block that has part `rank` of a tile's K, while other blocks of the cluster have
// the others. A block has one tile at most. `barrier` is the consumer's own.
template <typename Shape>
struct ClusterParts {
  static constexpr int kVector = 4, kConsuming = Shape::kConsumers * kWarpgroupThreads;
  // The columns of a part of a tile, which one block finishes.
  static constexpr int kColumns = Shape::kPartPanels * Shape::kPanelColumns;

  typename Shape::Shared& shared;
  int consumer, barrier, rank, parts;

  // Whether this block finishes the part of the tile that begins at this column.
  DIGLOT_DEVICE bool has(int column) const { return column / kColumns % parts == rank; }

  // Adds up, in the order of K, the sums that this block finishes.
  DIGLOT_DEVICE void add(float (&sums)[Shape::kSums]) const {
    constexpr int kSums = Shape::kSums;
    static_assert(sizeof(float) * kSums * kConsuming <= sizeof(shared.a) + sizeof(shared.b));
    const int thread = warpgroup_thread();
    float* const own =
        reinterpret_cast<float*>(&shared) + consumer * kSums * kWarpgroupThreads + thread * kVector;
    // All consumers of the block have read the tiles that were there.
    if constexpr (Shape::kConsumers > 1) {
      constexpr int kAll = 1 + Shape::kConsumers;  // the barrier's number
      named_barrier_sync(kAll, kConsuming);
    }
    DIGLOT_UNROLL
    for (int i = 0; i < kSums; i += kVector) {
      // Not by store_vector, which is for global memory.
      *reinterpret_cast<Vector<float, kVector>*>(own + i * kWarpgroupThreads) = {
          sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
    }
    named_barrier_sync(barrier, kWarpgroupThreads);  // the arrival is that of all threads
    cluster_wait();                                  // the others' barriers are ready
    Mbarrier& are_there = shared.are_there[consumer];
    if (thread < parts) are_there.arrive_at(thread);
    are_there.wait_for_cluster(0);
    for_each_part<Shape>(sums, [&](auto& part, auto first) {
      constexpr int kFirst = decltype(first)::value / 2;
      if (!has(first)) return;
      add_in_order(part, parts, [&](int other, int i) {
        return load_vector<float, kVector>(dsmem(own, other) + (kFirst + i) * kWarpgroupThreads);
      });
    });
  }
};

}  // namespace diglot
