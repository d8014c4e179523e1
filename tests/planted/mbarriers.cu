// Kernels that wait at mbarriers, named barriers and a cluster's barrier, and that move registers:
// right, and with a bug each. For tests/test_interpreted_barriers.py and
// tests/test_planted_table.py.
#include "diglot/mma/warpgroup.cuh"
#include "diglot/sync/cluster.cuh"
#include "diglot/vector_access.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

constexpr int kThreads = 256;

// The sum of a block's values, by one thread.
__device__ float sum_of_block(const float* in) {
  float sum = 0;
  for (int i = 0; i < kThreads; ++i) sum += in[blockIdx.x * kThreads + i];
  return sum;
}

enum class Fault {
  kNone,
  kNotInitialised,
  kInitialisedAgain,
  kOrdinaryAccess,
  kArrivalTwice,
  kArrivalMissing,
  kParityNotFlipped,
  kWaitMissing,
  kNoArrivals,
  kMisaligned,
  kNoBarrier,
  kInvalidatedEarly,
};

// out[block] = the block's sum. Rounds of 32 values pass from the first warp, the producer, to the
// second, the consumer, through one buffer with a barrier for either direction.
template <Fault kFault>
__global__ void pass_by_mbarrier(const float* in, float* out) {
  constexpr int kRounds = kThreads / 32;
  __shared__ float buffer[32];
  __shared__ Mbarrier full, empty;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    if (kFault != Fault::kNotInitialised) full.init(kFault == Fault::kNoArrivals ? 0 : 32);
    if (kFault == Fault::kInitialisedAgain) full.init(32);
    empty.init(32);
    if (kFault == Fault::kOrdinaryAccess) full.bits = 0;
    if (kFault == Fault::kMisaligned) {
      reinterpret_cast<Mbarrier*>(reinterpret_cast<char*>(&full) + 4)->init(1);
    }
  }
  if (kFault != Fault::kNoBarrier) __syncthreads();
  if (warp == 0) {
    for (int round = 0; round < kRounds; ++round) {
      empty.wait(kFault == Fault::kParityNotFlipped ? 1 : (round + 1) % 2);
      buffer[lane] = in[blockIdx.x * kThreads + round * 32 + lane];
      if (kFault == Fault::kArrivalMissing && round == 3 && lane == 5) continue;
      full.arrive(kFault == Fault::kArrivalTwice && round == 3 && lane == 5 ? 2 : 1);
    }
  } else if (warp == 1) {
    float sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (kFault != Fault::kWaitMissing || round != 3) full.wait(round % 2);
      if (lane == 0) {
        for (const float value : buffer) sum += value;
      }
      empty.arrive();
    }
    if (lane == 0) out[blockIdx.x] = sum;
  }
  if (kFault != Fault::kInvalidatedEarly) __syncthreads();
  if (threadIdx.x == 0) full.invalidate();
}

// The same by try_wait in a loop.
__global__ void poll_mbarrier(const float* in, float* out) {
  __shared__ float value;
  __shared__ Mbarrier full;
  if (threadIdx.x == 0) full.init(1);
  __syncthreads();
  if (threadIdx.x == 0) {
    value = sum_of_block(in);
    full.arrive();
  } else if (threadIdx.x == 100) {
    while (!full.try_wait(0)) {
    }
    out[blockIdx.x] = value;
  }
}

// Bytes that never come: those of a message of 4 bytes, where 8 are expected.
template <int kExpected>
__global__ void await_message(const float* in, float* out) {
  __shared__ float value;
  __shared__ Mbarrier arrived;
  if (threadIdx.x == 0) {
    arrived.init(1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const float sum = sum_of_block(in);
    arrived.arrive_expect(kExpected);
    store_async(cluster_address(shared_address(&value), 0), sum,
                cluster_address(shared_address(&arrived), 0));
  }
  arrived.wait(0);
  if (threadIdx.x == 7) out[blockIdx.x] = value;
}

// out[block] = the block's sum, by thread 0. To expect bytes releases nothing; its arrival does.
template <bool kArrives>
__global__ void expect_apart(const float* in, float* out) {
  __shared__ float value, one;
  __shared__ int has_expected;
  __shared__ Mbarrier arrived;
  if (threadIdx.x == 0) {
    has_expected = 0;
    arrived.init(1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    value = sum_of_block(in);
    arrived.expect(sizeof(one));
    if (kArrives) arrived.arrive();
    atomicAdd(&has_expected, 1);
  } else if (threadIdx.x == 64) {
    while (atomicAdd(&has_expected, 0) == 0) {
    }
    store_async(cluster_address(shared_address(&one), 0), 1.0f,
                cluster_address(shared_address(&arrived), 0));
    if (!kArrives) arrived.arrive();
  }
  arrived.wait(0);
  if (threadIdx.x == 7) out[blockIdx.x] = value * one;
}

enum class Part { kRight, kCounts, kNumber, kPartial, kMissing };

// out[block] = the block's sum: each half of the block sums its own values first.
template <Part kPart>
__global__ void sum_by_parts(const float* in, float* out) {
  __shared__ float values[kThreads];
  __shared__ float sums[2];
  const int i = static_cast<int>(threadIdx.x), half = i / 128;
  values[i] = in[blockIdx.x * kThreads + i];
  const int number = kPart == Part::kNumber ? 16 + half : 1 + half;
  int threads = kPart == Part::kPartial ? 100 : 128;
  if (kPart == Part::kCounts && i >= 64) threads = 64;
  if (kPart != Part::kMissing || i != 70) named_barrier_sync(number, threads);
  if (i % 128 == 0) {
    float sum = 0;
    for (int j = 0; j < 128; ++j) sum += values[half * 128 + j];
    sums[half] = sum;
  }
  // The second half tells the first, and goes on.
  if (half == 1) {
    named_barrier_arrive(3, kThreads);
  } else {
    named_barrier_sync(3, kThreads);
    if (i == 0) out[blockIdx.x] = sums[0] + sums[1];
  }
}

// The first warpgroup gives registers to two others.
template <int kKept, int kTaken>
__global__ void __launch_bounds__(384, 1) move_registers(const float* in, float* out) {
  if (threadIdx.x < 128) {
    release_registers<kKept>();
  } else {
    take_registers<kTaken>();
  }
  if (threadIdx.x == 0) {
    out[blockIdx.x] = sum_of_block(in);
  }
}

// Half a warp comes.
__global__ void __launch_bounds__(384, 1) registers_of_half_a_warp(const float*, float* out) {
  if (threadIdx.x % 32 < 16) release_registers<40>();
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = 0;
}

// One lane of each warp counts.
__global__ void elect(const float*, float* out) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (elect_one()) atomicAdd(&count, 1);
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<float>(count);
}

enum class Halves { kRight, kNoArrival, kTwoArrivals, kNoWait };

// out[block] = the sum of the other block of the cluster.
template <Halves kHalves>
__global__ void cluster_in_halves(const float* in, float* out) {
  __shared__ float sum;
  const int rank = static_cast<int>(blockIdx.x) % 2;
  if (threadIdx.x == 0) {
    sum = 0;
    for (int i = 0; i < kThreads; ++i) sum += in[blockIdx.x * kThreads + i];
  }
  if (kHalves != Halves::kNoArrival) cluster_arrive();
  if (kHalves == Halves::kTwoArrivals) cluster_arrive();
  if (kHalves != Halves::kNoWait) cluster_wait();
  if (threadIdx.x == 0) out[blockIdx.x] = *dsmem(&sum, 1 - rank);
  cluster_sync();
}

// The blocks of a cluster of two send each other their sums; one may end before it has arrived.
template <bool kLeavesEarly>
__global__ void send_in_cluster(const float* in, float* out) {
  __shared__ float value;
  __shared__ Mbarrier arrived;
  const uint32_t rank = blockIdx.x % 2;
  if (threadIdx.x == 0) {
    arrived.init(1);
    fence_mbarrier_init();
  }
  cluster_sync();
  if (kLeavesEarly && rank == 1) return;
  if (threadIdx.x == 0) {
    const float sum = sum_of_block(in);
    arrived.arrive_expect(sizeof(float));
    store_async(cluster_address(shared_address(&value), 1 - rank), sum,
                cluster_address(shared_address(&arrived), 1 - rank));
  }
  arrived.wait(0);
  if (threadIdx.x == 9) out[blockIdx.x] = value;
}

enum class Order { kRight, kNoFence, kBarrierBefore, kNarrowWait };

// out[block] = the sum of the other block of the cluster, which arrives at this block's mbarrier.
template <Order kOrder>
__global__ void arrive_in_cluster(const float* in, float* out) {
  __shared__ float value;
  __shared__ Mbarrier arrived;
  const uint32_t other = 1 - blockIdx.x % 2;
  if (kOrder == Order::kBarrierBefore) cluster_sync();
  if (threadIdx.x == 0) {
    arrived.init(1);
    if (kOrder != Order::kNoFence) fence_mbarrier_init();
  }
  __syncthreads();
  if (kOrder != Order::kBarrierBefore) {
    cluster_arrive_relaxed();
    cluster_wait();
  }
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < kThreads; ++i) sum += in[blockIdx.x * kThreads + i];
    value = sum;
    arrived.arrive_at(other);
  }
  if (kOrder == Order::kNarrowWait) {
    arrived.wait(0);
  } else {
    arrived.wait_for_cluster(0);
  }
  if (threadIdx.x == 9) out[blockIdx.x] = *dsmem(&value, static_cast<int>(other));
  cluster_sync();
}

enum class Copies { kRight, kNoWait, kFewGroups, kNotCommitted };

// out[block] = the block's sum, by two groups of copies. The second group is under way while the
// first is summed.
template <Copies kCopies>
__global__ void copy_in_groups(const float* in, float* out) {
  __shared__ __align__(16) float values[2][128];
  __shared__ float sums[2][32];
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    for (int group = 0; group < 2; ++group) {
      copy_async(reinterpret_cast<uint4*>(&values[group][4 * lane]),
                 in + blockIdx.x * kThreads + group * 128 + 4 * lane);
      if (kCopies != Copies::kNotCommitted || group == 0) group_copies();
    }
    for (int group = 0; group < 2; ++group) {
      if (kCopies != Copies::kNoWait) {
        wait_for_copies_before(kCopies == Copies::kFewGroups ? 1 : 1 - group);
      }
      float sum = 0;
      for (int i = 0; i < 4; ++i) sum += values[group][4 * lane + i];
      sums[group][lane] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (const auto& group : sums) {
      for (const float part : group) sum += part;
    }
    out[blockIdx.x] = sum;
  }
}

const std::vector<Entry> kernels = {
    {"pass_by_mbarrier", start<pass_by_mbarrier<Fault::kNone>>},
    {"not_initialised", start<pass_by_mbarrier<Fault::kNotInitialised>>},
    {"initialised_again", start<pass_by_mbarrier<Fault::kInitialisedAgain>>},
    {"ordinary_access", start<pass_by_mbarrier<Fault::kOrdinaryAccess>>},
    {"arrival_twice", start<pass_by_mbarrier<Fault::kArrivalTwice>>},
    {"arrival_missing", start<pass_by_mbarrier<Fault::kArrivalMissing>>},
    {"parity_not_flipped", start<pass_by_mbarrier<Fault::kParityNotFlipped>>},
    {"wait_missing", start<pass_by_mbarrier<Fault::kWaitMissing>>},
    {"no_arrivals", start<pass_by_mbarrier<Fault::kNoArrivals>>},
    {"misaligned_mbarrier", start<pass_by_mbarrier<Fault::kMisaligned>>},
    PLANTED(poll_mbarrier),
    {"expect_apart", start<expect_apart<true>>},
    {"expect_without_arrival", start<expect_apart<false>>},
    {"await_message", start<await_message<4>>},
    {"await_too_many_bytes", start<await_message<8>>},
    {"sum_by_parts", start<sum_by_parts<Part::kRight>>},
    {"part_of_two_counts", start<sum_by_parts<Part::kCounts>>},
    {"part_beyond_numbers", start<sum_by_parts<Part::kNumber>>},
    {"part_of_a_warp", start<sum_by_parts<Part::kPartial>>},
    {"part_without_a_thread", start<sum_by_parts<Part::kMissing>>},
    {"move_registers", start<move_registers<40, 232>>},
    {"too_many_registers", start<move_registers<48, 232>>},
    {"release_that_takes", start<move_registers<176, 232>>},
    {"half_a_warp_of_registers", start<registers_of_half_a_warp>},
    PLANTED(elect),
    {"cluster_in_halves", start<cluster_in_halves<Halves::kRight>>},
    {"cluster_without_arrival", start<cluster_in_halves<Halves::kNoArrival>>},
    {"cluster_two_arrivals", start<cluster_in_halves<Halves::kTwoArrivals>>},
    {"cluster_without_wait", start<cluster_in_halves<Halves::kNoWait>>},
    {"send_in_cluster", start<send_in_cluster<false>>},
    {"leave_cluster_early", start<send_in_cluster<true>>},
    {"copy_in_groups", start<copy_in_groups<Copies::kRight>>},
    {"copies_without_wait", start<copy_in_groups<Copies::kNoWait>>},
    {"copies_of_too_few_groups", start<copy_in_groups<Copies::kFewGroups>>},
    {"copies_not_committed", start<copy_in_groups<Copies::kNotCommitted>>},
    {"no_barrier_after_init", start<pass_by_mbarrier<Fault::kNoBarrier>>},
    {"invalidated_early", start<pass_by_mbarrier<Fault::kInvalidatedEarly>>},
    {"arrive_in_cluster", start<arrive_in_cluster<Order::kRight>>},
    {"arrive_without_init_fence", start<arrive_in_cluster<Order::kNoFence>>},
    {"wait_of_block_scope", start<arrive_in_cluster<Order::kNarrowWait>>},
    {"arrive_after_early_barrier", start<arrive_in_cluster<Order::kBarrierBefore>>},
};

}  // namespace planted
