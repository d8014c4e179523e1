// Products whose K is split: several blocks each sum a part of the steps along K of one tile.
// Twin of triton_ops/lib/products/split.py.
//
// Each leaves its sums in scratch and counts its arrival. The last to arrive adds up all parts in
// the order of K, whichever it is itself. So results do not depend on who is last.
#pragma once

#include "diglot/atomics.cuh"
#include "diglot/mma/warpgroup.cuh"
#include "diglot/products/schedule.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

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
  DIGLOT_UNROLL
  for (float& sum : sums) sum = 0;
  for (int part = 0; part < parts; ++part) {
    DIGLOT_UNROLL
    for (int i = 0; i < kSums; i += kVector) {
      const auto loaded = load_vector<float, kVector>(place(part, i));
      DIGLOT_UNROLL
      for (int j = 0; j < kVector; ++j) sums[i + j] += loaded[j];
    }
  }
  return true;
}

}  // namespace diglot
