// Dropout: kernels, launchers, registration. Twin of triton_ops/dropout.py.
#include "diglot/launch/dispatch.h"
#include "diglot/launch/elementwise.h"
#include "diglot/philox.cuh"
#include "torch/launcher.h"

namespace diglot {

// Multiplies elements whose random bits reach `threshold` by `scale`, and the others by zero. So a
// dropped NaN or infinity becomes NaN.
template <typename T>
struct SeededDropout {
  using Value = compute_t<T>;
  PhiloxKeys keys;
  uint64_t offset;
  uint32_t threshold;
  Value scale;

  template <int kElements>
  DIGLOT_DEVICE Vector<T, kElements> operator()(int64_t index,
                                                const Vector<T, kElements>& input) const {
    const auto bits = random_bits<kElements>(keys, offset, index);
    Vector<T, kElements> result;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      result[i] = convert<T>(convert<Value>(input[i]) * (bits[i] >= threshold ? scale : Value{0}));
    }
    return result;
  }
};

// The same with a seed in memory, which the kernels take.
//
// Ten rounds take many instructions, so other warps must run while one waits. Registers are limited
// for that. With fewer blocks per SM, the compiler would delay loads until late in the arithmetic.
// Of float32 a thread takes two accesses at most, and all threads of an SM are resident.
template <typename T>
struct Dropout {
  static constexpr int kFlatElements = sizeof(T) == 4 ? 8 : kElementsPerThread;
  static constexpr int kSmallDivisor = sizeof(T) == 8 ? 1 : 4;
  template <int kAccesses>
  static constexpr int kFlatBlocks = sizeof(T) == 2                     ? 12
                                     : sizeof(T) == 4 && kAccesses == 2 ? 2048 / kElementwiseThreads
                                                                        : 10;
  const uint64_t* seed;
  uint64_t offset;
  uint32_t threshold;
  compute_t<T> scale;

  DIGLOT_DEVICE SeededDropout<T> prepare() const {
    return {philox_keys(*seed), offset, threshold, scale};
  }
};

constexpr int kPhiloxThreads = 128;

// Each of n rows has a counter of four words and a key of two. Each row of the output gets four
// words.
__global__ void __launch_bounds__(kPhiloxThreads)
    philox_rows(int64_t n, const uint32_t* rows, uint32_t* output) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPhiloxThreads + threadIdx.x;
  if (row >= n) return;
  const uint32_t* const in = rows + 6 * row;
  const PhiloxWords words = philox_4x32({in[0], in[1], in[2], in[3]}, philox_keys(in[4], in[5]));
  DIGLOT_UNROLL
  for (int w = 0; w < 4; ++w) output[4 * row + w] = words.word[w];
}

}  // namespace diglot

namespace {

using namespace diglot;

// One function serves both directions: seed and offset give both the same mask.
void dropout(Planner& planner, const Operand& input, const Operand& seed, Integer offset,
             Integer threshold, Real scale, const Operand& out) {
  dispatch_floating(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto functor = [offset, threshold, seed = seed.as<const uint64_t>(),
                          scale = scale.as<compute_t<T>>()](const Arguments& now) {
      return Dropout<T>{seed(now), static_cast<uint64_t>(offset(now)),
                        static_cast<uint32_t>(threshold(now)), scale(now)};
    };
    map_elements<T>(planner, functor, out, input);
  });
}

void dropout_forward(Planner& planner, const Operand& input, const Operand& seed, Integer offset,
                     Integer threshold, Real scale, const Operand& out) {
  dropout(planner, input, seed, offset, threshold, scale, out);
}

void dropout_backward(Planner& planner, const Operand& grad_output, const Operand& seed,
                      Integer offset, Integer threshold, Real scale, const Operand& out) {
  dropout(planner, grad_output, seed, offset, threshold, scale, out);
}

// Philox of given counters and keys. `rows` is int32 [n, 6], `out` int32 [n, 4], both contiguous.
void philox_words(Planner& planner, const Operand& rows, const Operand& out) {
  const int64_t n = out.numel / 4;
  planner.plan.variant = "a thread per row";
  if (n == 0) return;
  planner.add<philox_rows>({blocks_for(n, kPhiloxThreads), kPhiloxThreads}, n,
                           rows.as<const uint32_t>(), out.as<uint32_t>());
}

DIGLOT_LAUNCHER(dropout_forward,
                "(Tensor input, Tensor seed, int offset, int threshold, float scale, "
                "Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(dropout_backward,
                "(Tensor grad_output, Tensor seed, int offset, int threshold, float scale, "
                "Tensor(a!) out, Tensor(z!)? scratch) -> ()")
DIGLOT_LAUNCHER(philox_words, "(Tensor rows, Tensor(a!) out, Tensor(z!)? scratch) -> ()")

}  // namespace
