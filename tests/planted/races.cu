// Kernels whose threads, blocks and launches race, each beside its right version, for
// tests/test_planted_races.py. For the interpreter alone: the memory that it watches is the host's.
#include <thread>

// Made of diglot/sync/grid_barrier.cuh by the test.
#include "../../build/planted/grid_barriers.h"
#include "diglot/launch/launch.h"
#include "diglot/sync/cluster.cuh"
#include "runner.h"

namespace planted {

// What kernels race for, and what orders them.
constexpr int kWords = 1024;
__device__ uint32_t words[2][kWords];
__device__ uint32_t flag;

// Lane 2 reads, and then lane 3 writes. `kMask`: who meets between the two.
template <unsigned kMask>
__global__ void lanes_that_meet(const float* in, float* out) {
  __shared__ float value;
  const unsigned lane = threadIdx.x;
  if (lane >= 32) return;
  if (lane == 0) value = in[0];
  __syncwarp();
  if (lane < 3) out[blockIdx.x] = value + 0 * lane;
  if (kMask >> lane & 1) __syncwarp(kMask);
  if (lane == 3) value = 1;
}

// Lanes exchange values: registers, which order no memory.
template <bool kIsRight>
__global__ void order_by_shuffle(const float* in, float* out) {
  __shared__ float values[32];
  const unsigned lane = threadIdx.x;
  if (lane >= 32) return;
  values[lane] = in[lane];
  const unsigned other = __shfl_xor_sync(0xffffffffu, lane, 1);
  if (kIsRight) __syncwarp();
  const float value = values[other];
  if (lane == 0) out[blockIdx.x] = value;
}

// A thread hands a value to another by a flag in shared memory.
enum class By { kAtomics, kVolatile };
template <By kBy, bool kRelease, bool kAcquire>
__global__ void hand_over_in_block(const float* in, float* out) {
  __shared__ float value;
  __shared__ int is_there;
  if (threadIdx.x == 0) is_there = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    value = in[blockIdx.x];
    if (kRelease) __threadfence_block();
    if (kBy == By::kAtomics) {
      atomicExch(&is_there, 1);
    } else {
      *static_cast<volatile int*>(&is_there) = 1;
    }
  }
  if (threadIdx.x == 40) {
    if (kBy == By::kAtomics) {
      while (atomicAdd(&is_there, 0) == 0) {
      }
    } else {
      while (*static_cast<volatile int*>(&is_there) == 0) {
      }
    }
    if (kAcquire) __threadfence_block();
    out[blockIdx.x] = value;
  }
}

// Blocks of a cluster read each other's values twice, which they change between.
template <bool kBetween, bool kAtEnd>
__global__ void read_in_cluster(const float* in, float* out) {
  __shared__ float value;
  const int rank = static_cast<int>(blockIdx.x) % 2;
  if (threadIdx.x == 0) value = in[blockIdx.x];
  diglot::cluster_sync();
  float sum = *diglot::dsmem(&value, 1 - rank);
  if (kBetween) diglot::cluster_sync();
  if (threadIdx.x == 0) value = in[blockIdx.x] + 1;
  diglot::cluster_sync();
  sum += *diglot::dsmem(&value, 1 - rank);
  if (kAtEnd) diglot::cluster_sync();
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Each block writes a word, and the wrong one its neighbour's too.
template <bool kIsRight>
__global__ void write_words(const float* in, float* out) {
  if (threadIdx.x != 0) return;
  words[0][blockIdx.x] = 1;
  if (!kIsRight) words[0][(blockIdx.x + 1) % gridDim.x] = 1;
}

// The same with the tensor that the launch may write.
template <bool kIsRight>
__global__ void write_tensor(const float* in, float* out) {
  if (threadIdx.x == 0) out[kIsRight ? blockIdx.x : 0] = 1;
}

// The first block hands words to all others by a flag.
enum class Scope { kBlock, kDevice };
template <Scope kScope>
__device__ void fence() {
  if (kScope == Scope::kBlock) __threadfence_block();
  if (kScope == Scope::kDevice) __threadfence();
}
template <bool kRelease, bool kAcquire, Scope kFence, Scope kAtomic>
__global__ void hand_over_in_grid(const float* in, float* out) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    words[0][0] = 1;
    if (kRelease) fence<kFence>();
    if (kAtomic == Scope::kBlock) {
      atomicExch_block(&flag, 1u);
    } else {
      atomicExch(&flag, 1u);
    }
    return;
  }
  while (atomicAdd(&flag, 0u) == 0) {
  }
  if (kAcquire) fence<kFence>();
  out[blockIdx.x] = static_cast<float>(words[0][0]);
}

// Blocks count in one word. `kScope`: for whom it is atomic.
template <Scope kScope>
__global__ void count_in_grid(const float* in, float* out) {
  if (kScope == Scope::kBlock) atomicAdd_block(&words[0][0], 1u);
  if (kScope == Scope::kDevice) atomicAdd(&words[0][0], 1u);
}

// In each of 3 phases every block writes, waits for the others, and reads theirs.
template <typename Barrier>
__global__ void meet_in_grid(const float* in, float* out) {
  Barrier barrier(&flag);
  uint32_t sum = 0;
  for (uint32_t phase = 0; phase < 3; ++phase) {
    // Not the thread that arrives: the barrier answers for the whole block.
    if (threadIdx.x == blockDim.x - 1) words[phase % 2][blockIdx.x] = phase;
    barrier.sync();
    for (uint32_t i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += words[phase % 2][i];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<float>(sum);
}

// Two launches run at once, each on its part of the words or not.
template <bool kIsRight>
__global__ void write_with_another(uint32_t first) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  atomicAdd(&flag, 1u);  // which orders nothing
  while (atomicAdd(&flag, 0u) < 2) {
  }
  words[0][kIsRight ? first : 0] = 1;
}

// A launch, while the words are watched.
template <typename Launch>
void watch(const Launch& launch) {
  flag = 0;
  const char* const begin = reinterpret_cast<const char*>(&words);
  using Ranges = std::vector<diglot::interpreter::Range>;
  const diglot::interpreter::Watch scope(Ranges{{begin, begin + sizeof(words)}});
  launch();
}
template <auto kKernel>
constexpr Start watched = [](const diglot::Launch& how, const float* in, float* out) {
  watch([&] { diglot::launch<kKernel>(how, nullptr, in, out); });
};

// A launch that watches what it may write.
template <auto kKernel>
constexpr Start watching_tensors = [](const diglot::Launch& how, const float* in, float* out) {
  diglot::interpreter::options().watches_arguments = true;
  diglot::launch<kKernel>(how, nullptr, in, out);
};

// Two launches after each other, which need no order of their own.
constexpr Start one_by_one = [](const diglot::Launch& how, const float* in, float* out) {
  watch([&] {
    diglot::launch<write_words<true>>(how, nullptr, in, out);
    diglot::launch<write_words<true>>(how, nullptr, in, out);
  });
};
template <bool kIsRight>
constexpr Start at_once = [](const diglot::Launch& how, const float*, float*) {
  watch([&] {
    std::string faults[2];
    const auto run = [&](uint32_t i) {
      try {
        diglot::launch<write_with_another<kIsRight>>(how, nullptr, i * (kWords / 2));
      } catch (const std::exception& error) {
        faults[i] = error.what();
      }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    for (const std::string& fault : faults) {
      if (!fault.empty()) throw std::runtime_error(fault);
    }
  });
};

const std::vector<Entry> kernels = {
    {"lanes_that_meet", start<lanes_that_meet<0xfu>>},
    {"a_lane_is_not_in_the_mask", start<lanes_that_meet<0xbu>>},
    {"order_by_syncwarp", start<order_by_shuffle<true>>},
    {"order_by_shuffle", start<order_by_shuffle<false>>},
    {"by_atomics", start<hand_over_in_block<By::kAtomics, true, true>>},
    {"by_atomics_no_release", start<hand_over_in_block<By::kAtomics, false, true>>},
    {"by_atomics_no_acquire", start<hand_over_in_block<By::kAtomics, true, false>>},
    {"by_volatile", start<hand_over_in_block<By::kVolatile, true, true>>},
    {"by_volatile_no_release", start<hand_over_in_block<By::kVolatile, false, true>>},
    {"by_volatile_no_acquire", start<hand_over_in_block<By::kVolatile, true, false>>},
    {"read_in_cluster", start<read_in_cluster<true, true>>},
    {"cluster_writes_early", start<read_in_cluster<false, true>>},
    {"cluster_ends_early", start<read_in_cluster<true, false>>},
    {"write_words", watched<write_words<true>>},
    {"write_words_of_others", watched<write_words<false>>},
    {"write_tensor", watching_tensors<write_tensor<true>>},
    {"write_tensor_of_others", watching_tensors<write_tensor<false>>},
    {"in_grid", watched<hand_over_in_grid<true, true, Scope::kDevice, Scope::kDevice>>},
    {"in_grid_no_release", watched<hand_over_in_grid<false, true, Scope::kDevice, Scope::kDevice>>},
    {"in_grid_no_acquire", watched<hand_over_in_grid<true, false, Scope::kDevice, Scope::kDevice>>},
    {"in_grid_narrow_fence", watched<hand_over_in_grid<true, true, Scope::kBlock, Scope::kDevice>>},
    {"in_grid_narrow_flag", watched<hand_over_in_grid<true, true, Scope::kDevice, Scope::kBlock>>},
    {"count_in_grid", watched<count_in_grid<Scope::kDevice>>},
    {"count_for_the_block", watched<count_in_grid<Scope::kBlock>>},
    {"meet_in_grid", watched<meet_in_grid<diglot::GridBarrier>>},
    {"meet_relaxed_arrival", watched<meet_in_grid<diglot::RelaxedArrival>>},
    {"meet_relaxed_wait", watched<meet_in_grid<diglot::RelaxedWait>>},
    {"meet_no_barrier_before", watched<meet_in_grid<diglot::NoBarrierBefore>>},
    {"meet_no_barrier_behind", watched<meet_in_grid<diglot::NoBarrierBehind>>},
    {"launches_one_by_one", one_by_one},
    {"launches_apart", at_once<true>},
    {"launches_at_once", at_once<false>},
};

}  // namespace planted
