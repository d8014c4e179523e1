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
