// From a run-time element type to a compile-time one.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "diglot/types.cuh"

namespace diglot {

template <typename T>
struct Type {
  using type = T;
};

// With DIGLOT_FEW_TYPES a build has kernels for two types only. It takes half the time, and serves
// to inspect machine code.
#if defined(DIGLOT_FEW_TYPES)
template <typename T>
constexpr bool kHasKernels = std::is_same_v<T, float> || std::is_same_v<T, bfloat16>;
#else
template <typename T>
constexpr bool kHasKernels = true;
#endif

// Calls function(Type<T>{}).
template <typename T, typename Function>
void call_for(Function function) {
  if constexpr (kHasKernels<T>) {
    function(Type<T>{});
  } else {
    throw std::invalid_argument("this build has kernels for float32 and bfloat16 alone");
  }
}

// Calls function(Type<T>{}) with the floating T of `dtype`.
template <typename Function>
void dispatch_floating(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat16: return call_for<float16>(function);
    case DType::kBFloat16: return call_for<bfloat16>(function);
    case DType::kFloat32: return call_for<float>(function);
    case DType::kFloat64: return call_for<double>(function);
    default: throw std::invalid_argument("expected a floating-point tensor");
  }
}

// Calls function(Type<I>{}, Type<O>{}) with the floating types of the two. O is I, or float32 where
// I is narrower.
template <typename Function>
void dispatch_widening(DType narrow, DType wide, Function function) {
  dispatch_floating(narrow, [&](auto type) {
    if (wide == narrow) return function(type, type);
    if constexpr (sizeof(typename decltype(type)::type) == 2) {
      if (wide == DType::kFloat32) return function(type, Type<float>{});
    }
    throw std::invalid_argument("expected tensors of one type, or of float32 and a narrower one");
  });
}

// Calls function(Type<T>{}) with the T of `dtype`.
template <typename Function>
void dispatch_all(DType dtype, Function function) {
  switch (dtype) {
    case DType::kBool: return call_for<bool>(function);
    case DType::kUInt8: return call_for<uint8_t>(function);
    case DType::kInt8: return call_for<int8_t>(function);
    case DType::kInt16: return call_for<int16_t>(function);
    case DType::kInt32: return call_for<int32_t>(function);
    case DType::kInt64: return call_for<int64_t>(function);
    default: return dispatch_floating(dtype, function);
  }
}

}  // namespace diglot
