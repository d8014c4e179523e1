// Kernels with a bug each, their right versions, and kernels that assert what a GPU does, for
// tests/test_interpreter.py. No PyTorch: the test calls run() through ctypes.
#include <cassert>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "diglot/sync/cluster.cuh"
#include "diglot/sync/grid_barrier.cuh"
#include "diglot/vector_access.cuh"
#include "runner.h"

namespace planted {

constexpr int kThreads = 256;
__constant__ float factors[2] = {0.5f, 2.0f};

// out[block] = sum of the block's 256 values, by halving in shared memory.
template <bool kFirstBarrier, bool kLoopBarrier>
__global__ void sum_in_shared(const float* in, float* out) {
  __shared__ float sums[kThreads];
  sums[threadIdx.x] = in[blockIdx.x * kThreads + threadIdx.x];
  if (kFirstBarrier) __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    if (kLoopBarrier) __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

// out[row] = sum of the row's 1000 values.
__global__ void sum_rows(const float* in, float* out) {
  constexpr int kColumns = 1000;
  __shared__ float sums[kThreads];
  float own = 0;
  for (int i = threadIdx.x; i < kColumns; i += kThreads) own += in[blockIdx.x * kColumns + i];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

// The same by shuffles; kWarps warps' sums are added.
template <int kWarps>
__global__ void sum_by_shuffles(const float* in, float* out) {
  __shared__ float sums[kThreads / 32];
  float value = in[blockIdx.x * kThreads + threadIdx.x];
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += sums[warp];
    out[blockIdx.x] = total;
  }
}

// Half of the threads take the other branch.
__global__ void divergent_barrier(const float* in, float* out) {
  if (threadIdx.x < kThreads / 2) {
    __syncthreads();  // first branch
  } else {
    __syncthreads();  // second branch
  }
  out[blockIdx.x] = in[blockIdx.x];
}

__global__ void missing_arrival(const float* in, float* out) {
  if (threadIdx.x == 7) return;
  __syncthreads();
  out[blockIdx.x] = in[blockIdx.x];
}

// Copies the block's 256 values; reads one further.
__global__ void off_by_one_read(const float* in, float* out) {
  float sum = 0;
  for (int i = threadIdx.x; i <= kThreads * gridDim.x; i += kThreads) sum += in[i];
  if (threadIdx.x < gridDim.x) out[threadIdx.x] = sum;
}

__global__ void off_by_one_write(const float* in, float* out) {
  if (threadIdx.x <= gridDim.x) out[threadIdx.x] = in[threadIdx.x];
}

__global__ void misaligned_vector(const float* in, float* out) {
  const auto vector = diglot::load_vector<float, 4>(in + 1);
  out[blockIdx.x] = vector[0];
}

__global__ void beyond_shared(const float* in, float* out) {
  __shared__ float values[kThreads];
  values[threadIdx.x + blockIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[blockIdx.x] = values[0];
}

__global__ void race_in_shared(const float* in, float* out) {
  __shared__ float last;
  last = in[threadIdx.x];
  __syncthreads();
  out[blockIdx.x] = last;
}

// Lanes of one warp are not in step either.
template <bool kBarrier>
__global__ void race_in_warp(const float* in, float* out) {
  __shared__ float values[32];
  if (threadIdx.x >= 32) return;
  values[threadIdx.x] = in[threadIdx.x];
  if (kBarrier) __syncwarp();
  const float other = values[31 - threadIdx.x];
  if (threadIdx.x == 0) out[blockIdx.x] = other;
}

__global__ void odd_width(const float* in, float* out) {
  const float value = __shfl_sync(0xffffffffu, in[threadIdx.x], 1, 12);
  if (threadIdx.x == 0) out[blockIdx.x] = value;
}

__global__ void absent_lane(const float* in, float* out) {
  if (threadIdx.x < 16) {
    const float value = __shfl_sync(0xffffu, in[threadIdx.x], 20);
    if (threadIdx.x == 0) out[blockIdx.x] = value;
  }
}

__global__ void absent_lanes_of_mask(const float* in, float* out) {
  if (threadIdx.x < 16) {
    const float value = __shfl_down_sync(0xffffffffu, in[threadIdx.x], 1);
    if (threadIdx.x == 0) out[blockIdx.x] = value;
  }
}

__global__ void failed_assertion(const float* in, float* out) {
  assert(threadIdx.x != 3);
  out[blockIdx.x] = in[blockIdx.x];
}

__global__ void division_by_zero(const float* in, float* out) {
  out[blockIdx.x] = in[kThreads / static_cast<int>(blockIdx.x + threadIdx.x)];
}

__device__ __noinline__ float descend(volatile float* out, int depth) {
  volatile float frame[512];
  frame[depth % 512] = out[0];
  return depth > 1000000 ? 0.0f : descend(out, depth + 1) + frame[0];
}
__global__ void stack_overflow(const float* in, float* out) {
  if (threadIdx.x == 9) out[blockIdx.x] = descend(out, 0);
}

// It does nothing but look, which is no wait.
__device__ __noinline__ float look_deeper(volatile float* out) {
  return out[0] > 0 ? 0.0f : look_deeper(out) + out[0];
}
__global__ void overflow_by_looks(const float* in, float* out) {
  out[blockIdx.x] = look_deeper(out);
}

__global__ void wait_for_nobody(const float* in, float* out) {
  if (threadIdx.x == 0) {
    while (atomicAdd(out, 0.0f) != 12345.0f) __nanosleep(20);
  }
  __syncthreads();
}

// The same without __nanosleep.
__global__ void spin_on_atomic(const float* in, float* out) {
  if (threadIdx.x == 0) {
    while (atomicAdd(out, 0.0f) != 12345.0f) {
    }
  }
  __syncthreads();
}

__global__ void spin_on_volatile(const float* in, float* out) {
  while (*static_cast<volatile float*>(out) != 12345.0f) {
  }
}

// A lane waits for what another lane of its warp does later: right, since lanes are scheduled one
// by one.
__global__ void wait_for_lane(const float* in, float* out) {
  if (threadIdx.x == 0) {
    while (*static_cast<volatile float*>(out + blockIdx.x) != 12345.0f) {
    }
    out[blockIdx.x] = 1;
  } else if (threadIdx.x == 1) {
    *static_cast<volatile float*>(out + blockIdx.x) = 12345.0f;
  }
}

// Every block waits for all others: right where they run at once. `out` must hold -1.
__global__ void wait_for_blocks(const float* in, float* out) {
  if (threadIdx.x == 0) {
    atomicAdd(out, 1.0f);
    while (atomicAdd(out, 0.0f) != static_cast<float>(gridDim.x) - 1) {
    }
  }
  __syncthreads();
}

__global__ void never_ends(const float* in, float* out) {
  float value = 0;
  for (unsigned i = threadIdx.x; value >= 0; ++i) value = in[i % 256];
  out[blockIdx.x] = value;
}

__global__ void sum_in_dynamic(const float* in, float* out) {
  extern __shared__ float dynamic[];
  dynamic[threadIdx.x] = in[blockIdx.x * kThreads + threadIdx.x];
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) dynamic[threadIdx.x] += dynamic[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = dynamic[0];
}

__device__ __noinline__ void fill(float* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = 1;
}
__global__ void beyond_shared_by_pointer(const float* in, float* out) {
  __shared__ float values[16];
  if (threadIdx.x == 0) fill(values, 100000);
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = values[3];
}

__global__ void copy_beyond(const float* in, float* out) {
  if (threadIdx.x == 0 && blockIdx.x == 0) memcpy(out, in, sizeof(float) * (gridDim.x + 1));
}

__global__ void copy_constant_size_beyond(const float* in, float* out) {
  if (threadIdx.x == 0) memcpy(out, in, 256);
}

// The size wraps around.
__global__ void copy_huge(const float* in, float* out) {
  if (threadIdx.x == 0) memcpy(out, in, 0 - static_cast<size_t>(in[4]));
}

__global__ void set_shared_beyond(const float* in, float* out) {
  __shared__ float values[16];
  if (threadIdx.x == 0) memset(values, 0, sizeof(values) + 4);
  __syncthreads();
  out[blockIdx.x] = values[0];
}

__global__ void set_constant_size_beyond(const float* in, float* out) {
  if (threadIdx.x == 0) memset(out, 0, 256);
}

__global__ void write_to_literal(const float* in, float* out) {
  const char* text = in[0] >= 0 ? "literal" : reinterpret_cast<const char*>(out);
  const_cast<char*>(text)[threadIdx.x % 8] = 0;
}

// What the compiler copies in line, whatever it is told.
__global__ void copy_from_nowhere(const float* in, float* out) {
  if (threadIdx.x == 0) __builtin_memcpy(out, reinterpret_cast<const char*>(5000), 64);
}

// A pointer that the loader has to fill in.
__constant__ const float* const table[] = {factors};
__global__ void write_to_table(const float* in, float* out) {
  const float* const* volatile names = table;
  const_cast<const float**>(names)[0] = in;
}

__global__ void write_to_input(const float* in, float* out) {
  if (threadIdx.x == 9) const_cast<float*>(in)[blockIdx.x] = 0;
}

__global__ void misaligned_atomic(const float* in, float* out) {
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<int*>(reinterpret_cast<char*>(out) + 2), 1);
}

__global__ void null_pointer(const float* in, float* out) {
  const float* nothing = nullptr;
  if (in[0] > 0) nothing = in;
  if (threadIdx.x == 0) out[blockIdx.x] = nothing[blockIdx.x];
}

// A whole warp, and a whole block, look again and again.
__global__ void spin_in_vote(const float* in, float* out) {
  while (!__any_sync(0xffffffffu, *static_cast<volatile float*>(out) == 12345.0f)) {
  }
}
__global__ void spin_in_barrier(const float* in, float* out) {
  while (!__syncthreads_or(*static_cast<volatile float*>(out) == 12345.0f)) {
  }
}

// Waits that end: for two words that other threads set, and one that counts its turns.
__global__ void wait_for_two_words(const float* in, float* out) {
  __shared__ int words[2], turns;
  if (threadIdx.x == 0) words[0] = words[1] = turns = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    while (atomicAdd(&words[0], 0) + atomicAdd(&words[1], 0) < 2) atomicAdd(&turns, 1);
  } else if (threadIdx.x < 34) {
    atomicExch(&words[threadIdx.x - 32], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = 1;
}

// The first block comes long after the others wait for it.
__global__ void wait_for_slow_block(const float* in, float* out) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < 30000000; ++i) sum += in[i % 256];
    out[1] = sum;
  }
  atomicAdd(out, 1.0f);
  while (atomicAdd(out, 0.0f) < static_cast<float>(gridDim.x) - 1) {
  }
}

// Structures that have a constructor, and that have holes.
struct Constructed {
  float a, b;
  __device__ Constructed() {}
};
struct Padded {
  char a;
  long long b;
};
extern __shared__ __align__(16) unsigned char bytes[];

// Forms of the language that kernels use.
__global__ void forms(const float* in, float* out) {
  __shared__ Constructed constructed[8];
  __shared__ Padded padded[8];
  __shared__ __align__(16) float aligned[8];
  const uint3 thread = threadIdx;
  const dim3 grid = gridDim;
  const int lane = thread.x % 32;
  if (thread.x < 8) {
    constructed[lane].a = constructed[lane].b = static_cast<float>(lane);
    padded[lane].a = 1, padded[lane].b = lane;
    aligned[lane] = factors[lane % 2];
    bytes[lane] = static_cast<unsigned char>(lane);
  }
  __threadfence_block();
  __threadfence();
  __threadfence_system();
  __syncthreads();
  const Constructed one = constructed[lane % 8];
  const Padded other = padded[lane % 8];
  assert(one.a == one.b && other.b == lane % 8 && aligned[lane % 8] == factors[lane % 2]);
  assert(bytes[lane % 8] == lane % 8 && grid.x == gridDim.x && grid.y == 1);
  assert(max(1.0f, NAN) == 1.0f && min(NAN, 2.0f) == 2.0f && max(1, 2) == 2);
  assert(__brev(1u) == 0x80000000u && __mulhi(1 << 20, 1 << 20) == 256);
  assert(__match_any_sync(0xffffffffu, lane / 4) == 0xfu << lane / 4 * 4);
  assert(__reduce_or_sync(0xffffffffu, 1u << lane) == 0xffffffffu);
  if (lane % 2 == 0) {  // one barrier from two places
    __syncwarp();
  } else {
    __syncwarp();
  }
  if (thread.x == 0) out[blockIdx.x] = 1;
  if (lane >= 20) return;
  // Who has ended is not waited for.
  assert(__ballot_sync(0xffffffffu, 1) == 0xfffffu || lane >= 20);
}

// In each of 20 phases every block writes, waits for the others, and counts the words of theirs
// that are not of this phase: out[block] is their number. `dropped` is a block that leaves out
// its arrival in the last phase. The barrier's word is static: zero once, and never again; a
// dropped arrival leaves its own unfit for use.
__device__ uint32_t barrier_words[2] = {0, 0};
__device__ uint32_t written[2][1024];
template <unsigned kDropped>
__global__ void cross_grid_barriers(const float* in, float* out) {
  diglot::GridBarrier barrier(&barrier_words[kDropped == ~0u ? 0 : 1]);
  int wrong = 0;
  for (uint32_t phase = 1; phase <= 20; ++phase) {
    uint32_t* const words = written[phase % 2];
    // Not the thread that arrives: the barrier answers for the whole block.
    if (threadIdx.x == blockDim.x - 1) words[blockIdx.x] = phase + blockIdx.x;
    if (phase == 20 && blockIdx.x == kDropped) break;
    barrier.arrive();
    barrier.wait();
    for (uint32_t i = threadIdx.x; i < gridDim.x; i += blockDim.x) wrong += words[i] != phase + i;
  }
  wrong = __syncthreads_count(wrong);
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<float>(wrong);
}

__global__ void least_by_minus_one(const float* in, float* out) {
  const int least = -2147483647 - static_cast<int>(in[1]);
  out[blockIdx.x] = static_cast<float>(least / (static_cast<int>(in[0]) - 1));
}

__global__ void trap(const float* in, float* out) {
  if (threadIdx.x == 5) __trap();
}

__global__ void print(const float* in, float* out) {
  if (threadIdx.x == 0) printf("block %u says %g\n", blockIdx.x, in[2]);
}

// The 256 threads see what 256 threads of a GPU see.
__global__ void votes(const float* in, float* out) {
  const int lane = threadIdx.x % 32;
  const unsigned all = 0xffffffffu;
  assert(__syncthreads_count(threadIdx.x % 3 == 0) == 86);
  assert(__syncthreads_or(threadIdx.x == 200) != 0);
  assert(__syncthreads_or(threadIdx.x == 256) == 0);
  assert(__syncthreads_and(threadIdx.x < 256) != 0);
  assert(__syncthreads_and(threadIdx.x < 255) == 0);
  assert(__ballot_sync(all, lane % 4 == 1) == 0x22222222u);
  assert(__any_sync(all, lane == 31) && !__any_sync(all, lane == 32));
  assert(__all_sync(all, lane < 32) && !__all_sync(all, lane < 31));
  assert(__reduce_add_sync(all, static_cast<unsigned>(lane)) == 496);
  assert(__reduce_max_sync(all, -lane) == 0 && __reduce_min_sync(all, -lane) == -31);
  if (lane < 8) {
    assert(__ballot_sync(0xffu, 1) == 0xffu);
    assert(__reduce_add_sync(0xffu, 1) == 8);
  }
  assert(__activemask() >> lane & 1);  // the others may be anywhere
  if (threadIdx.x == 0) out[blockIdx.x] = 1;
}

__global__ void shuffles(const float* in, float* out) {
  const int lane = threadIdx.x % 32;
  const unsigned all = 0xffffffffu;
  assert(__shfl_sync(all, lane, 5) == 5);
  assert(__shfl_sync(all, lane, 37) == 5);  // modulo the width
  assert(__shfl_sync(all, lane, 1, 8) == lane / 8 * 8 + 1);
  assert(__shfl_up_sync(all, lane, 1) == (lane == 0 ? 0 : lane - 1));
  assert(__shfl_up_sync(all, lane, 2, 16) == (lane % 16 < 2 ? lane : lane - 2));
  assert(__shfl_down_sync(all, lane, 1) == (lane == 31 ? 31 : lane + 1));
  assert(__shfl_down_sync(all, lane, 3, 8) == (lane % 8 > 4 ? lane : lane + 3));
  assert(__shfl_xor_sync(all, lane, 1) == (lane ^ 1));
  assert(__shfl_up_sync(all, lane, 33) == (lane == 0 ? 0 : lane - 1));  // 5 bits of it count
  assert(__shfl_down_sync(all, lane, 0x80000001u) == (lane == 31 ? 31 : lane + 1));
  assert(__shfl_xor_sync(all, lane, -31) == (lane ^ 1));
  assert(__shfl_xor_sync(all, 0.5 * lane, 16) == 0.5 * (lane ^ 16));  // 8 bytes
  if (threadIdx.x == 0) out[blockIdx.x] = 1;
}

__global__ void atomics(const float* in, float* out) {
  __shared__ int sum, least, greatest, both, either, odd, last, wrapped, down, chosen;
  __shared__ double total;
  __shared__ unsigned long long wide;
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) {
    sum = 0, least = 1000, greatest = -1000, both = -1, either = 0, odd = 0, last = -1;
    wrapped = 0, down = 0, chosen = -1, total = 0, wide = 0;
  }
  __syncthreads();
  atomicAdd(&sum, i);
  atomicSub(&sum, 1);
  atomicMin(&least, i);
  atomicMax(&greatest, i);
  atomicAnd(&both, ~(1 << i % 16));
  atomicOr(&either, 1 << i % 16);
  atomicXor(&odd, i);
  atomicExch(&last, i);
  atomicInc(reinterpret_cast<unsigned*>(&wrapped), 99u);
  atomicDec(reinterpret_cast<unsigned*>(&down), 99u);
  atomicCAS(&chosen, -1, i);
  atomicAdd(&total, 0.5);
  atomicAdd_block(&wide, 1ull << 40);
  __syncthreads();
  assert(sum == 255 * 128 - 256);
  assert(least == 0 && greatest == 255);
  assert(both == static_cast<int>(0xffff0000) && either == 0xffff && odd == 0);
  assert(last >= 0 && last < 256 && chosen >= 0 && chosen < 256);
  assert(wrapped == 256 % 100);
  assert(down == 44);  // 0 to 99, then 255 steps down, each hundredth of them to 99 again
  assert(total == 128.0 && wide == 256ull << 40);
  if (i == 0) out[blockIdx.x] = 1;
}

// out[block] = in[block], rounded to 16 bits on the way.
__global__ void round_to_half(const float* in, float* out) {
  out[blockIdx.x] = __half2float(__float2half_rn(in[blockIdx.x]));
}
__global__ void round_to_bfloat16(const float* in, float* out) {
  out[blockIdx.x] = __bfloat162float(__float2bfloat16_rn(in[blockIdx.x]));
}

__global__ void fast_exponential(const float* in, float* out) {
  out[blockIdx.x] = __expf(in[blockIdx.x]);
}
__global__ void fast_sine(const float* in, float* out) { out[blockIdx.x] = __sinf(in[blockIdx.x]); }
__global__ void fast_quotient(const float* in, float* out) {
  out[blockIdx.x] = __fdividef(1.0f, in[blockIdx.x]);
}

// Bugs of a kernel in which the blocks of a cluster read each other's shared memory.
enum class InCluster { kNothing, kBlockMissing, kNoSuchBlock };

// out[block] = the sum of the values of all blocks of the cluster, through shared memory.
template <InCluster kFault>
__global__ void sum_in_cluster(const float* in, float* out) {
  constexpr int kBlocks = 2;
  __shared__ float values[256];
  const int i = static_cast<int>(threadIdx.x), rank = static_cast<int>(blockIdx.x) % kBlocks;
  values[i] = in[blockIdx.x * blockDim.x + i];
  if (kFault == InCluster::kBlockMissing && rank == 1) return;
  diglot::cluster_sync();
  if (i == 0) {
    float sum = 0;
    for (int other = 0; other < kBlocks; ++other) {
      const int block = other + (kFault == InCluster::kNoSuchBlock);
      const float* const theirs = diglot::dsmem(values, block);
      for (int j = 0; j < 256; ++j) sum += theirs[j];
    }
    out[blockIdx.x] = sum;
  }
  diglot::cluster_sync();  // before a block ends
}

__global__ void empty(const float*, float*) {}

const std::vector<Entry> kernels = {
    {"sum_in_shared", start<sum_in_shared<true, true>>},
    {"missing_barrier", start<sum_in_shared<false, true>>},
    {"missing_barrier_in_loop", start<sum_in_shared<true, false>>},
    {"sum_by_shuffles", start<sum_by_shuffles<8>>},
    {"dropped_warp", start<sum_by_shuffles<7>>},
    {"race_in_warp", start<race_in_warp<false>>},
    {"ordered_in_warp", start<race_in_warp<true>>},
    {"sum_in_cluster", start<sum_in_cluster<InCluster::kNothing>>},
    {"cluster_without_a_block", start<sum_in_cluster<InCluster::kBlockMissing>>},
    {"beyond_cluster", start<sum_in_cluster<InCluster::kNoSuchBlock>>},
    PLANTED(sum_rows),
    PLANTED(beyond_shared_by_pointer),
    PLANTED(copy_beyond),
    PLANTED(copy_constant_size_beyond),
    PLANTED(set_constant_size_beyond),
    PLANTED(set_shared_beyond),
    PLANTED(copy_huge),
    PLANTED(least_by_minus_one),
    PLANTED(write_to_literal),
    PLANTED(write_to_table),
    PLANTED(copy_from_nowhere),
    PLANTED(write_to_input),
    PLANTED(misaligned_atomic),
    PLANTED(null_pointer),
    PLANTED(spin_in_vote),
    PLANTED(spin_in_barrier),
    PLANTED(wait_for_two_words),
    PLANTED(wait_for_slow_block),
    PLANTED(forms),
    {"cross_grid_barriers", start<cross_grid_barriers<~0u>>},
    {"drop_arrival", start<cross_grid_barriers<3>>},
    PLANTED(divergent_barrier),
    PLANTED(missing_arrival),
    PLANTED(off_by_one_read),
    PLANTED(off_by_one_write),
    PLANTED(misaligned_vector),
    PLANTED(beyond_shared),
    PLANTED(race_in_shared),
    PLANTED(absent_lane),
    PLANTED(odd_width),
    PLANTED(absent_lanes_of_mask),
    PLANTED(failed_assertion),
    PLANTED(division_by_zero),
    PLANTED(stack_overflow),
    PLANTED(overflow_by_looks),
    PLANTED(never_ends),
    PLANTED(wait_for_nobody),
    PLANTED(spin_on_atomic),
    PLANTED(spin_on_volatile),
    PLANTED(wait_for_lane),
    PLANTED(wait_for_blocks),
    PLANTED(sum_in_dynamic),
    PLANTED(trap),
    PLANTED(print),
    PLANTED(votes),
    PLANTED(shuffles),
    PLANTED(atomics),
    PLANTED(round_to_half),
    PLANTED(round_to_bfloat16),
    PLANTED(fast_exponential),
    PLANTED(fast_sine),
    PLANTED(fast_quotient),
    PLANTED(empty),
};

}  // namespace planted
