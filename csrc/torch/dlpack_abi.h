// The part of DLPack's C exchange API (version 1) that diglot uses: how PyTorch describes a tensor
// in one call, without Python's objects for its shape, strides and dtype. Layouts are frozen by
// DLPack's major version; they are declared here because PyTorch's stable headers lack them.
#pragma once

#include <cstdint>

namespace diglot::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr const char* kAttribute = "__dlpack_c_exchange_api__";  // of the type torch.Tensor
constexpr const char* kCapsule = "dlpack_exchange_api";

enum DeviceType : int32_t { kCpu = 1, kCuda = 2 };
enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBFloat = 4,
  kBool = 6,
  kFloat8E4M3 = 10,
  kFloat8E5M2 = 12
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_index;
  int32_t rank;
  DataType dtype;
  const int64_t* sizes;    // borrowed, and so are the strides
  const int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct ExchangeApi {
  uint32_t major_version;
  uint32_t minor_version;
  const ExchangeApi* older;
  void (*allocate)();
  void (*tensor_from_python)();
  void (*tensor_to_python)();
  // Describes a Python tensor; the description holds while the tensor stays unchanged. Returns 0,
  // or -1 with a Python error set. Null if the producer has no such function.
  int (*describe)(void* tensor, Tensor* out);
  void (*current_stream)();
};

}  // namespace diglot::dlpack
