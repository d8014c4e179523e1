// The kernels that are verified and timed: phases between barriers, launches that do nothing, and
// an array that is reduced and then rewritten by the result.
#pragma once

#include <algorithm>

#include "designs.cuh"
#include "diglot/launch/launch.h"

namespace diglot {

// Verification: in every phase each block writes a slot, and reads all others' after the barrier.
// The thread that writes is not the one that polls.

DIGLOT_DEVICE void write_slot(uint32_t* slots, uint32_t phase) {
  if (threadIdx.x == blockDim.x - 1)
    slots[phase % 2 * gridDim.x + blockIdx.x] = 1 + phase + blockIdx.x;
}

DIGLOT_DEVICE void read_slots(const uint32_t* slots, uint32_t phase, uint32_t* mismatches) {
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
    wrong += slots[phase % 2 * gridDim.x + i] != 1 + phase + i;
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}

// The same kernel is timed without slots.
template <typename Barrier>
__global__ void __launch_bounds__(1024)
    run_phases(uint32_t* words, uint32_t phases, uint32_t* slots, uint32_t* mismatches) {
  Barrier barrier(words);
  for (uint32_t phase = 0; phase < phases; ++phase) {
    if (slots != nullptr) write_slot(slots, phase);
    barrier.sync();
    if (slots != nullptr) read_slots(slots, phase, mismatches);
  }
}

// A launch programmatically dependent on the one before may begin earlier, and waits here for that
// one's end. This saves the latency of a launch.
template <bool kProgrammatic>
DIGLOT_DEVICE void wait_for_launch_before() {
  if (kProgrammatic) {
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
  }
}

template <bool kProgrammatic>
__global__ void __launch_bounds__(1024)
    run_phase(uint32_t phase, uint32_t* slots, uint32_t* mismatches) {
  wait_for_launch_before<kProgrammatic>();
  if (slots == nullptr) return;
  if (phase > 0) read_slots(slots, phase - 1, mismatches);
  write_slot(slots, phase);
}

// Reduce, then use: an array is scaled to a mean of one, in place, so that it may be repeated.

constexpr unsigned kUseThreads = 256;
constexpr unsigned kMostBlocks = 8;  // per multiprocessor: of 256 threads no more run at once
constexpr int64_t kUnit = kUseThreads * 4;

struct Chunks {
  int64_t n;     // elements, a multiple of kUnit
  int64_t size;  // of a chunk, likewise
  unsigned count;
};

template <typename Body>
DIGLOT_DEVICE void for_each_vector(const Chunks& chunks, unsigned chunk, const Body& body) {
  const int64_t end = min(chunks.n, (chunk + 1) * chunks.size);
#pragma unroll 4
  for (int64_t i = chunk * chunks.size + threadIdx.x * 4; i < end; i += kUnit) body(i);
}

DIGLOT_DEVICE float sum_over_block(float value) {
  __shared__ float sums[kUseThreads / 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();  // the sums of the call before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
  for (float sum : sums) total += sum;
  return total;
}

DIGLOT_DEVICE void reduce(const Chunks& chunks, unsigned chunk, float* x, float* partials) {
  float sum = 0;
  for_each_vector(chunks, chunk, [&](int64_t i) {
    const float4 v = *reinterpret_cast<float4*>(x + i);
    sum += (v.x + v.y) + (v.z + v.w);
  });
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) partials[chunk] = sum;
}

DIGLOT_DEVICE float scale_of(const Chunks& chunks, float* partials) {
  float sum = 0;
  for (unsigned i = threadIdx.x; i < chunks.count; i += kUseThreads) sum += partials[i];
  return chunks.n / sum_over_block(sum);
}

DIGLOT_DEVICE void rewrite(const Chunks& chunks, unsigned chunk, float* x, float scale) {
  for_each_vector(chunks, chunk, [&](int64_t i) {
    const float4 v = *reinterpret_cast<float4*>(x + i);
    *reinterpret_cast<float4*>(x + i) = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
  });
}

__global__ void __launch_bounds__(kUseThreads, kMostBlocks)
    use_in_one_launch(uint32_t* word, Chunks chunks, float* x, float* partials) {
  GridBarrier barrier(word);
  for (unsigned c = blockIdx.x; c < chunks.count; c += gridDim.x) reduce(chunks, c, x, partials);
  barrier.sync();
  const float scale = scale_of(chunks, partials);
  for (unsigned c = blockIdx.x; c < chunks.count; c += gridDim.x) rewrite(chunks, c, x, scale);
}

template <bool kProgrammatic>
__global__ void __launch_bounds__(kUseThreads, kMostBlocks)
    use_first_launch(Chunks chunks, float* x, float* partials) {
  wait_for_launch_before<kProgrammatic>();
  reduce(chunks, blockIdx.x, x, partials);
}

template <bool kProgrammatic>
__global__ void __launch_bounds__(kUseThreads, kMostBlocks)
    use_second_launch(Chunks chunks, float* x, float* partials) {
  wait_for_launch_before<kProgrammatic>();
  rewrite(chunks, blockIdx.x, x, scale_of(chunks, partials));
}

// Between 0.5 and 1.5.
DIGLOT_DEVICE float initial_value(int64_t i) {
  return 0.5f + static_cast<float>(static_cast<uint32_t>(i) * 2654435761u >> 8) * 0x1p-24f;
}

__global__ void fill(int64_t n, float* x, double* total) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  double sum = 0;
  for (int64_t i = first; i < n; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    x[i] = initial_value(i);
    sum += x[i];
  }
  atomicAdd(total, sum);
}

// Of one launch and of two the result is the same to the bit, as the chunks are; and it is the
// right one.
__global__ void compare(int64_t n, const float* x, const float* reference, const double* total,
                        uint32_t* mismatches) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t wrong = 0;
  for (int64_t i = first; i < n; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const double expected = initial_value(i) * (n / *total);
    wrong += !(x[i] == reference[i] && fabs(x[i] - expected) < 1e-4 * expected);
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}

// So that the host is ahead of the device when a measurement begins.
__global__ void delay(uint64_t nanoseconds) {
  const uint64_t begin = global_nanoseconds();
  while (global_nanoseconds() - begin < nanoseconds) {
  }
}
}  // namespace diglot
