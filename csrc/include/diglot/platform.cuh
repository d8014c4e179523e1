// All that the device library needs of its compiler: function qualifiers and vendor headers. A
// kernel includes this instead of CUDA's own headers, so that a host compiler can compile the same
// source. Alone, it does so for the kernel's arithmetic. With DIGLOT_INTERPRETER defined,
// csrc/interpreter/include replaces CUDA's headers.
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

// Unroll the next loop, or leave it rolled, where the compiler knows how.
#if defined(__CUDACC__)
#define DIGLOT_UNROLL _Pragma("unroll")
#define DIGLOT_NO_UNROLL _Pragma("unroll 1")
#else
#define DIGLOT_UNROLL
#define DIGLOT_NO_UNROLL
#endif

#if !defined(DIGLOT_INTERPRETER)
namespace diglot {

// The line of a kernel that calls a function of the device library: the last parameter of functions
// whose misuse the interpreter reports. The interpreter has its own; on a GPU it is empty.
struct Place {
  static DIGLOT_HOST_DEVICE constexpr Place here() { return {}; }
};

}  // namespace diglot
#endif
