// All steps of the ladder, for ctypes (ladder.py).
#include <exception>
#include <string>

#include "1_threads.cu"
#include "2_shared_memory.cu"
#include "3_wgmma.cu"
#include "4_ring.cu"
#include "5_wide_tiles.cu"
#include "6_persistent.cu"
#include "7_clusters.cu"
#include "8_epilogue.cu"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/work.h"

// What TMA and the tensor cores have been asked for so far.
extern "C" __attribute__((visibility("default"))) diglot::interpreter::Work work() {
  return diglot::interpreter::work();
}
#endif

using Multiply = void (*)(const ladder::Product&, cudaStream_t);
constexpr Multiply kSteps[] = {step1::multiply, step2::multiply, step3::multiply, step4::multiply,
                               step5::multiply, step6::multiply, step7::multiply, step8::multiply};

// C = A B by a step, from 1 on. Returns what went wrong, or null.
extern "C" __attribute__((visibility("default"))) const char* multiply(int step, const void* a,
                                                                       const void* b, void* c,
                                                                       int m, int n, int k,
                                                                       void* stream) {
  using diglot::bfloat16;
  static thread_local std::string message;
  const auto* const of_a = static_cast<const bfloat16*>(a);
  const auto* const of_b = static_cast<const bfloat16*>(b);
  auto* const of_c = static_cast<bfloat16*>(c);
  try {
#if defined(DIGLOT_INTERPRETER)
    // The kernel may touch these three, and write to C alone.
    const auto range = [](const bfloat16* begin, int64_t elements, bool is_writable) {
      return diglot::interpreter::Range{reinterpret_cast<const char*>(begin),
                                        reinterpret_cast<const char*>(begin + elements),
                                        is_writable};
    };
    const diglot::interpreter::Arguments scope({range(of_a, int64_t{m} * k, false),
                                                range(of_b, int64_t{k} * n, false),
                                                range(of_c, int64_t{m} * n, true)});
#endif
    kSteps[step - 1]({of_a, of_b, of_c, m, n, k}, static_cast<cudaStream_t>(stream));
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}
