// Kernels of wgmma, ldmatrix and stmatrix: right ones, and the same with a bug each. For
// tests/test_wgmma.py and tests/test_planted_table.py, which give them small integers: their
// products are exact.
#include "diglot/mma/wgmma.cuh"

#include "diglot/mma/matrix.cuh"
#include "diglot/sync/mbarrier.cuh"
#include "runner.h"

namespace planted {

using namespace diglot;

enum class Fault {
  kNone,
  kFenceMissing,
  kTouchedAfterFence,
  kTouchedBeforeWait,
  kCommitMissing,
  kWaitMissing,
  kWaitForOlder,
  kDescriptorDiffers,
  kWrongStride,
  kWrongSwizzle,
  kBeyondShared,
  kMisaligned,
  kNotEncoded,
  kHalfWarpgroup,
  kOtherShape,
  kOverwrittenEarly,
  kProxyFenceMissing,
  kBarrierMissing,
  kUnwritten,
};

// The bits of a small integer.
template <MmaType kType>
__device__ uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (kType == MmaType::kTf32 || value == 0) return bits;
  constexpr int kMantissa = kType == MmaType::kBfloat16  ? 7
                            : kType == MmaType::kFloat16 ? 10
                            : kType == MmaType::kE4m3    ? 3
                                                         : 2;
  constexpr int kBits = 8 * bytes_of(kType), kExponent = kBits - 1 - kMantissa;
  constexpr uint32_t kBias = (1u << (kExponent - 1)) - 1;
  const uint32_t exponent = (bits >> 23 & 255) - 127 + kBias;
  return bits >> 31 << (kBits - 1) | exponent << kMantissa |
         (bits >> (23 - kMantissa) & ((1u << kMantissa) - 1));
}

template <MmaType kType>
__device__ void store(char* to, float value) {
  const uint32_t bits = bits_of<kType>(value);
  if constexpr (bytes_of(kType) == 4) {
    *reinterpret_cast<uint32_t*>(to) = bits;
  } else if constexpr (bytes_of(kType) == 2) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits);
  } else {
    *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(bits);
  }
}

// Two products of 64 x 2 K and 2 K x kN, added, by 128 threads; out[block] counts the sums that are
// wrong. `in` has A by rows, then B by columns.
template <MmaType kA, MmaType kB, Major kMajorA, Major kMajorB, Swizzle kSwizzle, int kN,
          bool kHasRegisters = false, Fault kFault = Fault::kNone>
__global__ void __launch_bounds__(128) product(const float* in, float* out) {
  constexpr int kDepth = 128 / bytes_of(kA), kSteps = 2, kK = kSteps * kDepth;
  using TileA = SmemTile<kA, kMajorA, kSwizzle, 64, kDepth>;
  using TileB = SmemTile<kB, kMajorB, kSwizzle, kN, kDepth>;
  extern __shared__ __align__(1024) char shared[];
  char* const a = shared + (kFault == Fault::kMisaligned ? 128 : 0);
  char* const b = shared + 1024 * ((TileA::kBytes + 1023) / 1024 + 1);
  const int thread = static_cast<int>(threadIdx.x);
  const float* const in_b = in + 64 * kK;
  float d[kN / 2] = {};
  for (int step = 0; step < kSteps; ++step) {
    for (int i = thread; i < 64 * kDepth; i += 128) {
      const int row = i / kDepth, k = i % kDepth;
      if (kFault == Fault::kUnwritten && row >= 32) break;
      store<kA>(a + TileA::offset(row, k), in[row * kK + step * kDepth + k]);
    }
    for (int i = thread; i < kN * kDepth; i += 128) {
      const int column = i / kDepth, k = i % kDepth;
      store<kB>(b + TileB::offset(column, k), in_b[column * kK + step * kDepth + k]);
    }
    if (kFault != Fault::kProxyFenceMissing) fence_async_proxy();
    if (kFault != Fault::kBarrierMissing) __syncthreads();
    const uint32_t address_b = shared_address(b);
    const uint32_t address_a = shared_address(a);
    fence_accumulators(d);
    if (kFault != Fault::kFenceMissing) wgmma_fence();
    if (kFault == Fault::kTouchedAfterFence && step == 1) d[2] += 0;
    if (kFault == Fault::kHalfWarpgroup && thread >= 64) break;
    for (int k = 0; k < kDepth; k += depth_of(kA)) {
      uint64_t from_a = TileA::descriptor(address_a, 0, k);
      uint64_t from_b = TileB::descriptor(address_b, 0, k);
      constexpr auto kStride = static_cast<uint64_t>(TileB::kAlignment) >> 4;
      if (kFault == Fault::kDescriptorDiffers && thread == 77) from_a ^= 2;
      if (kFault == Fault::kWrongStride) from_b += kStride << 32;
      if (kFault == Fault::kWrongSwizzle) from_b ^= 3ull << 62;
      if (kFault == Fault::kBeyondShared) from_b += 0x3000;
      if (kFault == Fault::kNotEncoded) from_b |= static_cast<uint64_t>(address_b) << 4;
      const bool accumulate = step > 0 || k > 0;
      if constexpr (kHasRegisters) {
        uint32_t registers[4];
        const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
        load_matrices(registers, a + TileA::offset(row, k + lane / 16 * 8));
        wgmma_fence();
        wgmma<kA, kB, kMajorB>(d, registers, from_b, accumulate);
      } else {
        wgmma<kA, kB, kMajorA, kMajorB>(d, from_a, from_b, accumulate);
      }
      if constexpr (kFault == Fault::kOtherShape) {
        wgmma<MmaType::kTf32>(d, from_a, from_b, accumulate);
      }
    }
    if (kFault != Fault::kCommitMissing) wgmma_commit();
    if (kFault == Fault::kOverwrittenEarly && step == 0) {
      __syncthreads();
      store<kA>(a + TileA::offset(thread % 64, thread / 64), 5);
    }
    if (kFault == Fault::kTouchedBeforeWait && step == 1 && thread == 5) d[3] += 1;
    if (kFault == Fault::kWaitForOlder) {
      wgmma_wait<1>();
    } else if (kFault != Fault::kWaitMissing) {
      wgmma_wait<0>();
    }
    fence_accumulators(d);
    __syncthreads();
  }
  if (kFault == Fault::kWaitMissing) return;
  __shared__ int wrong;
  if (thread == 0) wrong = 0;
  __syncthreads();
  DIGLOT_UNROLL
  for (int i = 0; i < kN / 2; ++i) {
    float sum = 0;
    DIGLOT_NO_UNROLL
    for (int k = 0; k < kK; ++k) {
      sum += in[accumulator_row(thread, i) * kK + k] * in_b[accumulator_column(thread, i) * kK + k];
    }
    if (d[i] != sum) atomicAdd(&wrong, 1);
  }
  __syncthreads();
  if (thread == 0) out[blockIdx.x] = static_cast<float>(wrong);
}

// Two warpgroups, each with two groups of products under way: as many sums are wrong.
__global__ void __launch_bounds__(256) overlap(const float* in, float* out) {
  constexpr int kK = 128, kN = 32;
  using TileA = SmemTile<MmaType::kBfloat16, Major::kK, Swizzle::k128, 128, kK>;
  using TileB = SmemTile<MmaType::kBfloat16, Major::kK, Swizzle::k128, 2 * kN, kK>;
  extern __shared__ __align__(1024) char shared[];
  char *const a = shared, *const b = shared + TileA::kBytes;
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  const float* const in_b = in + 128 * kK;
  for (int i = thread; i < 128 * kK; i += 256) {
    store<MmaType::kBfloat16>(a + TileA::offset(i / kK, i % kK), in[i]);
  }
  for (int i = thread; i < 2 * kN * kK; i += 256) {
    store<MmaType::kBfloat16>(b + TileB::offset(i / kK, i % kK), in_b[i]);
  }
  __shared__ int wrong;
  if (thread == 0) wrong = 0;
  fence_async_proxy();
  __syncthreads();
  float left[kN / 2], right[kN / 2];
  wgmma_fence();
  for (int k = 0; k < kK; k += 16) {
    wgmma<MmaType::kBfloat16>(left, TileA::descriptor(shared_address(a), 64 * group, k),
                              TileB::descriptor(shared_address(b), 0, k), k > 0);
  }
  wgmma_commit();
  for (int k = 0; k < kK; k += 16) {
    wgmma<MmaType::kBfloat16>(right, TileA::descriptor(shared_address(a), 64 * group, k),
                              TileB::descriptor(shared_address(b), kN, k), k > 0);
  }
  wgmma_commit();
  const auto count = [&](const float (&d)[kN / 2], int first) {
    DIGLOT_UNROLL
    for (int i = 0; i < kN / 2; ++i) {
      const int row = 64 * group + accumulator_row(thread % 128, i);
      const int column = first + accumulator_column(thread % 128, i);
      float sum = 0;
      DIGLOT_NO_UNROLL
      for (int k = 0; k < kK; ++k) sum += in[row * kK + k] * in_b[column * kK + k];
      if (d[i] != sum) atomicAdd(&wrong, 1);
    }
  };
  wgmma_wait<1>();
  fence_accumulators(left);
  count(left, 0);
  wgmma_wait<0>();
  fence_accumulators(right);
  count(right, kN);
  __syncthreads();
  if (thread == 0) out[blockIdx.x] = static_cast<float>(wrong);
}

// A warp transposes matrices of 8 x 8: as many elements are wrong. out[block] counts them.
template <int kMatrices, bool kIsMisaligned = false>
__global__ void transpose_matrices(const float*, float* out) {
  __shared__ __align__(16) uint16_t from[4 * 64 + 8], to[4 * 64];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 4 * 64; i += 32) from[i] = static_cast<uint16_t>(i), to[i] = 0xffff;
  __syncwarp();
  uint32_t straight[kMatrices], turned[kMatrices];
  load_matrices(straight, from + 8 * lane + (kIsMisaligned ? 4 : 0));
  load_matrices<true>(turned, from + 8 * lane);
  int wrong = 0;
  for (int i = 0; i < kMatrices; ++i) {
    const uint32_t row = 64 * i + lane / 4 * 8 + lane % 4 * 2,
                   column = 64 * i + lane % 4 * 16 + lane / 4;
    wrong += straight[i] != (row | (row + 1) << 16);
    wrong += turned[i] != (column | (column + 8) << 16);
  }
  store_matrices<true>(straight, to + 8 * lane);
  __syncwarp();
  for (int i = lane; i < 64 * kMatrices; i += 32) {
    wrong += to[i] != from[i / 64 * 64 + i % 8 * 8 + i / 8 % 8];
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    wrong += __shfl_xor_sync(0xffffffffu, wrong, offset);
  }
  if (lane == 0) out[blockIdx.x] = static_cast<float>(wrong);
}

template <MmaType kType>
constexpr Start k_major = start<product<kType, kType, Major::kK, Major::kK, Swizzle::k128, 64>>;
template <Fault kFault>
constexpr Start faulty = start<product<MmaType::kBfloat16, MmaType::kBfloat16, Major::kK, Major::kK,
                                       Swizzle::k128, 32, false, kFault>>;

// With FP8 sums of 14 bits.
void start_truncating(const Launch& how, const float* in, float* out) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::options().truncates_fp8 = true;
#endif
  k_major<MmaType::kE4m3>(how, in, out);
}

constexpr auto kBf16 = MmaType::kBfloat16, kFp16 = MmaType::kFloat16;
constexpr auto kE4m3 = MmaType::kE4m3, kE5m2 = MmaType::kE5m2;
constexpr auto kMajorK = Major::kK, kMajorMn = Major::kMn;

const std::vector<Entry> kernels = {
    {"bf16", k_major<kBf16>},
    {"tf32", k_major<MmaType::kTf32>},
    {"e4m3", k_major<kE4m3>},
    {"e4m3_truncated", start_truncating},
    {"mixed", start<product<kE5m2, kE4m3, kMajorK, kMajorK, Swizzle::k64, 8>>},
    {"fp16_mn", start<product<kFp16, kFp16, kMajorMn, kMajorMn, Swizzle::k64, 96>>},
    {"bf16_none", start<product<kBf16, kBf16, kMajorMn, kMajorK, Swizzle::kNone, 16>>},
    {"bf16_wide", start<product<kBf16, kBf16, kMajorK, kMajorMn, Swizzle::k128, 256>>},
    {"registers", start<product<kBf16, kBf16, kMajorK, kMajorMn, Swizzle::k128, 128, true>>},
    PLANTED(overlap),
    {"matrices_1", start<transpose_matrices<1>>},
    {"matrices_2", start<transpose_matrices<2>>},
    {"matrices_4", start<transpose_matrices<4>>},
    {"matrices_misaligned", start<transpose_matrices<4, true>>},
    {"right", faulty<Fault::kNone>},
    {"fence_missing", faulty<Fault::kFenceMissing>},
    {"touched_after_fence", faulty<Fault::kTouchedAfterFence>},
    {"touched_before_wait", faulty<Fault::kTouchedBeforeWait>},
    {"commit_missing", faulty<Fault::kCommitMissing>},
    {"wait_missing", faulty<Fault::kWaitMissing>},
    {"wait_for_older", faulty<Fault::kWaitForOlder>},
    {"descriptor_differs", faulty<Fault::kDescriptorDiffers>},
    {"wrong_stride", faulty<Fault::kWrongStride>},
    {"wrong_swizzle", faulty<Fault::kWrongSwizzle>},
    {"beyond_shared", faulty<Fault::kBeyondShared>},
    {"misaligned", faulty<Fault::kMisaligned>},
    {"not_encoded", faulty<Fault::kNotEncoded>},
    {"half_warpgroup", faulty<Fault::kHalfWarpgroup>},
    {"other_shape", faulty<Fault::kOtherShape>},
    {"overwritten_early", faulty<Fault::kOverwrittenEarly>},
    {"proxy_fence_missing", faulty<Fault::kProxyFenceMissing>},
    {"barrier_missing", faulty<Fault::kBarrierMissing>},
    {"unwritten", faulty<Fault::kUnwritten>},
};

}  // namespace planted
