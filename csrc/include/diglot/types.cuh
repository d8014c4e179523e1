// Element types by the library's own names, the type in which each is computed, and the conversions
// between the two. Twin of triton_ops/lib/types.py.
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

using float16 = __half;
using bfloat16 = __nv_bfloat16;

// Codes of the element types, as they travel in kernel arguments.
enum class DType : int32_t {
  kBool,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8E4M3,
  kFloat8E5M2,
};

// The code of the type that arithmetic is done in, float or double.
template <typename Compute>
constexpr DType kDType = sizeof(Compute) == 8 ? DType::kFloat64 : DType::kFloat32;

constexpr bool is_floating(DType dtype) { return dtype >= DType::kFloat16; }

constexpr int size_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2: return 1;
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kInt32:
    case DType::kFloat32: return 4;
    default: return 8;
  }
}

// The type of arithmetic on T: float for the floating types up to 32 bits, double for double.
// Integers compute in 32 or 64 bits and wrap on the final store, exactly as arithmetic in a
// narrower type would. They are unsigned, because signed overflow is undefined in C++.
template <typename T>
struct Compute {
  using type = uint32_t;
};
template <>
struct Compute<int64_t> {
  using type = uint64_t;
};
template <>
struct Compute<float16> {
  using type = float;
};
template <>
struct Compute<bfloat16> {
  using type = float;
};
template <>
struct Compute<float> {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};
template <typename T>
using compute_t = typename Compute<T>::type;

// convert<To>(x): one rounding to nearest even between floating types; C++ conversion otherwise.
template <typename To, typename From>
struct Convert {
  DIGLOT_DEVICE static To apply(From x) { return static_cast<To>(x); }
};
template <typename From>
struct Convert<float16, From> {
  DIGLOT_DEVICE static float16 apply(From x) { return __float2half_rn(static_cast<float>(x)); }
};
template <typename From>
struct Convert<bfloat16, From> {
  DIGLOT_DEVICE static bfloat16 apply(From x) { return __float2bfloat16_rn(static_cast<float>(x)); }
};
// A double goes to 16 bits in one rounding, not through float.
template <>
struct Convert<float16, double> {
  DIGLOT_DEVICE static float16 apply(double x) { return __double2half(x); }
};
template <>
struct Convert<bfloat16, double> {
  DIGLOT_DEVICE static bfloat16 apply(double x) { return __double2bfloat16(x); }
};
template <typename To>
struct Convert<To, float16> {
  DIGLOT_DEVICE static To apply(float16 x) { return static_cast<To>(__half2float(x)); }
};
template <typename To>
struct Convert<To, bfloat16> {
  DIGLOT_DEVICE static To apply(bfloat16 x) { return static_cast<To>(__bfloat162float(x)); }
};
template <>
struct Convert<float16, float16> {
  DIGLOT_DEVICE static float16 apply(float16 x) { return x; }
};
template <>
struct Convert<bfloat16, bfloat16> {
  DIGLOT_DEVICE static bfloat16 apply(bfloat16 x) { return x; }
};
template <>
struct Convert<float16, bfloat16> {
  DIGLOT_DEVICE static float16 apply(bfloat16 x) { return __float2half_rn(__bfloat162float(x)); }
};
template <>
struct Convert<bfloat16, float16> {
  DIGLOT_DEVICE static bfloat16 apply(float16 x) { return __float2bfloat16_rn(__half2float(x)); }
};

template <typename To, typename From>
DIGLOT_DEVICE To convert(From x) {
  return Convert<To, From>::apply(x);
}

// Reads element `index` of an array whose type is known only at run time.
template <typename To>
DIGLOT_DEVICE To load_as(const void* data, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::kBool: return convert<To>(static_cast<const bool*>(data)[index]);
    case DType::kUInt8: return convert<To>(static_cast<const uint8_t*>(data)[index]);
    case DType::kInt8: return convert<To>(static_cast<const int8_t*>(data)[index]);
    case DType::kInt16: return convert<To>(static_cast<const int16_t*>(data)[index]);
    case DType::kInt32: return convert<To>(static_cast<const int32_t*>(data)[index]);
    case DType::kInt64: return convert<To>(static_cast<const int64_t*>(data)[index]);
    case DType::kFloat16: return convert<To>(static_cast<const float16*>(data)[index]);
    case DType::kBFloat16: return convert<To>(static_cast<const bfloat16*>(data)[index]);
    case DType::kFloat32: return convert<To>(static_cast<const float*>(data)[index]);
    default: return convert<To>(static_cast<const double*>(data)[index]);
  }
}

// Writes element `index` of a floating array whose type is known only at run time.
template <typename From>
DIGLOT_DEVICE void store_as(void* data, int64_t index, DType dtype, From value) {
  switch (dtype) {
    case DType::kFloat16: static_cast<float16*>(data)[index] = convert<float16>(value); break;
    case DType::kBFloat16: static_cast<bfloat16*>(data)[index] = convert<bfloat16>(value); break;
    case DType::kFloat32: static_cast<float*>(data)[index] = convert<float>(value); break;
    default: static_cast<double*>(data)[index] = convert<double>(value);
  }
}

}  // namespace diglot
