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

#define STEP(NUMBER)                                             \
  {#NUMBER " 8x8x8", start_step<NUMBER, 8, 8, 8>},               \
      {#NUMBER " 136x264x72", start_step<NUMBER, 136, 264, 72>}, \
      {#NUMBER " 64x72x616", start_step<NUMBER, 64, 72, 616>}, { \
    #NUMBER " 520x776x136", start_step<NUMBER, 520, 776, 136>    \
  }

const std::vector<Entry> kernels = {STEP(1), STEP(2), STEP(3), STEP(4),
                                    STEP(5), STEP(6), STEP(7), STEP(8)};

}  // namespace planted
