// Kernels with a bug each, and their right versions, for tests/test_interpreter.py. No PyTorch: the
// test calls run() through ctypes.
#include <cassert>
#include <cstring>
#include <string>

#include "diglot/launch.cuh"
#include "diglot/vector_access.cuh"

namespace planted {

constexpr int kThreads = 256;

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

__noinline__ float descend(volatile float* out, int depth) {
  volatile float frame[512];
  frame[depth % 512] = out[0];
  return depth > 1000000 ? 0.0f : descend(out, depth + 1) + frame[0];
}
__global__ void stack_overflow(const float* in, float* out) {
  if (threadIdx.x == 9) out[blockIdx.x] = descend(out, 0);
}

__global__ void wait_for_nobody(const float* in, float* out) {
  if (threadIdx.x == 0) {
    while (atomicAdd(out, 0.0f) != 12345.0f) __nanosleep(20);
  }
  __syncthreads();
}

__global__ void empty(const float*, float*) {}

template <auto kKernel>
void start(dim3 grid, dim3 block, const float* in, float* out) {
  diglot::launch<kKernel>(grid, block, nullptr, in, out);
}

struct Entry {
  const char* name;
  void (*start)(dim3 grid, dim3 block, const float* in, float* out);
};
const Entry kKernels[] = {
    {"sum_in_shared", start<sum_in_shared<true, true>>},
    {"missing_barrier", start<sum_in_shared<false, true>>},
    {"missing_barrier_in_loop", start<sum_in_shared<true, false>>},
    {"sum_by_shuffles", start<sum_by_shuffles<8>>},
    {"dropped_warp", start<sum_by_shuffles<7>>},
    {"divergent_barrier", start<divergent_barrier>},
    {"missing_arrival", start<missing_arrival>},
    {"off_by_one_read", start<off_by_one_read>},
    {"off_by_one_write", start<off_by_one_write>},
    {"misaligned_vector", start<misaligned_vector>},
    {"beyond_shared", start<beyond_shared>},
    {"race_in_shared", start<race_in_shared>},
    {"race_in_warp", start<race_in_warp<false>>},
    {"ordered_in_warp", start<race_in_warp<true>>},
    {"absent_lane", start<absent_lane>},
    {"absent_lanes_of_mask", start<absent_lanes_of_mask>},
    {"failed_assertion", start<failed_assertion>},
    {"division_by_zero", start<division_by_zero>},
    {"stack_overflow", start<stack_overflow>},
    {"wait_for_nobody", start<wait_for_nobody>},
    {"empty", start<empty>},
};

}  // namespace planted

// Runs a kernel on `elements` values and one result for each block. Returns what went wrong, or "".
extern "C" __attribute__((visibility("default"))) const char* run(const char* name, unsigned blocks,
                                                                  unsigned threads, const float* in,
                                                                  float* out, std::int64_t elements,
                                                                  unsigned long long seed,
                                                                  int finds_races) {
  static thread_local std::string answer;
  diglot::interpreter::options() = {seed, finds_races != 0, 0};
  const auto range = [](const float* begin, std::int64_t count) {
    return diglot::interpreter::Range{reinterpret_cast<const char*>(begin),
                                      reinterpret_cast<const char*>(begin + count)};
  };
  const diglot::interpreter::Arguments scope({range(in, elements), range(out, blocks)});
  answer = "there is no such kernel";
  for (const planted::Entry& entry : planted::kKernels) {
    if (std::strcmp(entry.name, name) != 0) continue;
    answer.clear();
    try {
      entry.start(blocks, threads, in, out);
    } catch (const std::exception& error) {
      answer = error.what();
    }
  }
  return answer.c_str();
}
