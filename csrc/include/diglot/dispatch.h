// From a run-time element type to a compile-time one.
#pragma once

#include <stdexcept>

#include "diglot/types.cuh"

namespace diglot {

template <typename T>
struct Type {
  using type = T;
};

// Calls function(Type<T>{}) with the floating T of `dtype`.
template <typename Function>
void dispatch_floating(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat16: return function(Type<float16>{});
    case DType::kBFloat16: return function(Type<bfloat16>{});
    case DType::kFloat32: return function(Type<float>{});
    case DType::kFloat64: return function(Type<double>{});
    default: throw std::invalid_argument("expected a floating-point tensor");
  }
}

// Calls function(Type<I>{}, Type<O>{}) with the floating types of the two: the same, or a wider one
// of float32.
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
    case DType::kBool: return function(Type<bool>{});
    case DType::kUInt8: return function(Type<uint8_t>{});
    case DType::kInt8: return function(Type<int8_t>{});
    case DType::kInt16: return function(Type<int16_t>{});
    case DType::kInt32: return function(Type<int32_t>{});
    case DType::kInt64: return function(Type<int64_t>{});
    default: return dispatch_floating(dtype, function);
  }
}

}  // namespace diglot
