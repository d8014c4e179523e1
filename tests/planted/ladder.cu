// The steps of examples/tensor_cores/steps on some sizes, for tests/test_ladder.py.
#include "../../examples/tensor_cores/steps/ladder.cu"

#include "runner.h"

namespace planted {

// `in` has the bfloat16 elements of A and then of B, and `out` those of C.
template <int kStep, int kM, int kN, int kK>
constexpr Start start_step = [](const diglot::Launch&, const float* in, float* out) {
  const auto* const a = reinterpret_cast<const diglot::bfloat16*>(in);
  auto* const c = reinterpret_cast<diglot::bfloat16*>(out);
  kSteps[kStep - 1]({a, a + kM * kK, c, kM, kN, kK}, nullptr);
};

#define SIZE(STEP, M, N, K) {#STEP " " #M "x" #N "x" #K, start_step<STEP, M, N, K>}
#define SIZES(STEP)                                                       \
  SIZE(STEP, 8, 8, 8), SIZE(STEP, 136, 264, 72), SIZE(STEP, 64, 72, 616), \
      SIZE(STEP, 520, 776, 136), SIZE(STEP, 512, 512, 128)

const std::vector<Entry> kernels = {SIZES(1), SIZES(2), SIZES(3), SIZES(4),
                                    SIZES(5), SIZES(6), SIZES(7), SIZES(8)};

}  // namespace planted
