// What the device library needs of its compiler, in one place: function qualifiers and vendor
// headers. A kernel includes this instead of CUDA's own headers, so that the same source can also
// be given to a host compiler: alone, for its arithmetic, or with DIGLOT_INTERPRETER defined, where
// csrc/interpreter/include stands in for CUDA's headers.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(USE_CUDA) || defined(DIGLOT_INTERPRETER)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#if defined(__CUDACC__)
#define DIGLOT_DEVICE __device__ __forceinline__
#define DIGLOT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DIGLOT_DEVICE inline
#define DIGLOT_HOST_DEVICE inline
#endif

namespace diglot {

// Where a function of this library is called: known to the interpreter, for its messages.
#if defined(DIGLOT_INTERPRETER)
using Place = interpreter::Place;
#else
struct Place {
  static constexpr DIGLOT_HOST_DEVICE Place here() { return {}; }
};
#endif

}  // namespace diglot

// Unrolls the loop that follows, or leaves it as it is, where the compiler knows how.
#if defined(__CUDACC__)
#define DIGLOT_UNROLL _Pragma("unroll")
#define DIGLOT_NO_UNROLL _Pragma("unroll 1")
#else
#define DIGLOT_UNROLL
#define DIGLOT_NO_UNROLL
#endif
