// Tensor maps, which describe a tensor to the tensor memory accelerator (TMA). The host encodes
// them. A kernel takes one as a parameter of type `const __grid_constant__ TensorMap`, and moves
// boxes of the tensor by tma.cuh. TMA needs compute capability 9.0.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <type_traits>

#include "diglot/launch/fork_safe_mutex.h"
#include "diglot/mma/tensor_description.h"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/tensor_map.h"
#else
#include <cudaTypedefs.h>

#include "diglot/launch/device.h"
#endif

namespace diglot {

// Opaque: on a GPU a CUtensorMap, in the interpreter an encoding of its own.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

// The element type of a kernel's pointer.
template <typename T>
constexpr TensorType tensor_type() {
  if constexpr (std::is_same_v<T, float>) return TensorType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return TensorType::kFloat64;
  if constexpr (std::is_same_v<T, __half>) return TensorType::kFloat16;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return TensorType::kBfloat16;
  if constexpr (std::is_integral_v<T>) {
    static_assert(sizeof(T) >= 4 || std::is_unsigned_v<T>, "no tensor map has this type");
    if constexpr (sizeof(T) == 1) return TensorType::kUint8;
    if constexpr (sizeof(T) == 2) return TensorType::kUint16;
    if constexpr (sizeof(T) == 4) {
      return std::is_signed_v<T> ? TensorType::kInt32 : TensorType::kUint32;
    }
    return std::is_signed_v<T> ? TensorType::kInt64 : TensorType::kUint64;
  }
}

#if !defined(DIGLOT_INTERPRETER)
// The driver's function. The CUDA runtime finds it, so that nothing links with the driver.
inline PFN_cuTensorMapEncodeTiled_v12000 driver_encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 encoder = [] {
    constexpr unsigned kVersion = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kVersion,
                                           cudaEnableDefault, &result),
          "asking the driver for cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess) {
      throw std::runtime_error(
          "the CUDA driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return encoder;
}
#endif

// The interpreter knows which memory a launch may touch, and so how long a buffer is.
inline TensorDescription with_bytes(TensorDescription tensor) {
#if defined(DIGLOT_INTERPRETER)
  if (tensor.bytes == 0) tensor.bytes = interpreter::argument_bytes(tensor.address);
#endif
  return tensor;
}

// Throws std::invalid_argument if the description breaks a rule.
inline TensorMap encode(const TensorDescription& description) {
  const TensorDescription tensor = with_bytes(description);
  if (const std::string fault = fault_of(tensor); !fault.empty()) {
    throw std::invalid_argument("encoding a tensor map: " + fault);
  }
  TensorMap map;
#if defined(DIGLOT_INTERPRETER)
  interpreter::encode_tensor_map(tensor, &map);
#else
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  static_assert(alignof(TensorMap) >= alignof(CUtensorMap));
  const std::vector<uint32_t> ones(tensor.rank(), 1);
  const auto& element_strides = tensor.element_strides.empty() ? ones : tensor.element_strides;
  std::vector<uint64_t> strides = tensor.strides;
  strides.push_back(0);  // not read; of one dimension the driver gets no null pointer
  const CUresult result = driver_encoder()(
      reinterpret_cast<CUtensorMap*>(&map), static_cast<CUtensorMapDataType>(tensor.type),
      static_cast<uint32_t>(tensor.rank()), const_cast<void*>(tensor.address), tensor.shape.data(),
      strides.data(), tensor.box.data(), element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
      static_cast<CUtensorMapSwizzle>(tensor.swizzle),
      static_cast<CUtensorMapL2promotion>(tensor.l2_promotion),
      static_cast<CUtensorMapFloatOOBfill>(tensor.fill));
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("encoding a tensor map: the driver refuses it, with CUresult " +
                             std::to_string(static_cast<int>(result)));
  }
#endif
  return map;
}

// The same, but keeps maps: launches with the same tensors encode once. Any thread may call it.
inline TensorMap tensor_map(const TensorDescription& description) {
  const TensorDescription tensor = with_bytes(description);
  constexpr std::size_t kMostKept = 256;
  static auto& kept = *new std::map<TensorDescription, TensorMap>;  // a process may end meanwhile
  const std::lock_guard lock(fork_safe_mutex<TensorMap>());
  const auto found = kept.find(tensor);
  if (found != kept.end()) return found->second;
  const TensorMap map = encode(tensor);
  if (kept.size() == kMostKept) kept.clear();
  kept.emplace(tensor, map);
  return map;
}

}  // namespace diglot
