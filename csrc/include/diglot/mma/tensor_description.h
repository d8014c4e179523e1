// Describes a tensor in global memory and the boxes of it that the tensor memory accelerator (TMA)
// moves. A tensor map (tensor_map.h) is encoded from it. The rules are those of the CUDA driver
// API, "cuTensorMapEncodeTiled", and of the PTX ISA, 5.5 "Tensors". They are checked here, so that
// an error names the number and the rule, in the interpreter and for a GPU alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "diglot/mma/swizzle.h"
#include "diglot/platform.cuh"

namespace diglot {

constexpr std::size_t kMostTensorRank = 5;

// Numbered as CUtensorMapDataType. Eight-bit floats are kUint8.
enum class TensorType : uint8_t {
  kUint8,
  kUint16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat32Ftz,
  kTfloat32,
  kTfloat32Ftz,
};

struct TensorTypeFacts {
  const char* name;
  unsigned bytes;
  bool is_float;
};

inline const TensorTypeFacts& facts_of(TensorType type) {
  static const TensorTypeFacts facts[] = {
      {"uint8", 1, false},      {"uint16", 2, false},     {"uint32", 4, false},
      {"int32", 4, false},      {"uint64", 8, false},     {"int64", 8, false},
      {"float16", 2, true},     {"float32", 4, true},     {"float64", 8, true},
      {"bfloat16", 2, true},    {"float32_ftz", 4, true}, {"tfloat32", 4, true},
      {"tfloat32_ftz", 4, true}};
  return facts[static_cast<int>(type)];
}

// How many bytes L2 fetches at once, as a hint. Numbered as CUtensorMapL2promotion.
enum class L2Promotion : uint8_t { kNone, k64, k128, k256 };

// How a reduction combines the elements of a box with those of the tensor.
enum class Reduction : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor };

// Where a box begins, innermost dimension first: `{column, row}`. It may begin outside the tensor.
struct Coordinates {
  int32_t at[kMostTensorRank];
  int rank;

  template <typename... Integers>
  DIGLOT_HOST_DEVICE Coordinates(Integers... values)
      : at{static_cast<int32_t>(values)...}, rank(sizeof...(values)) {
    static_assert(sizeof...(values) >= 1 && sizeof...(values) <= kMostTensorRank);
  }
};

// What a load writes for elements of a box that lie outside the tensor.
enum class OutsideFill : uint8_t { kZeros, kNan };

// Dimensions are in CUDA's order: the innermost, whose elements are neighbours, is the first.
struct TensorDescription {
  TensorType type = TensorType::kFloat32;
  const void* address = nullptr;               // a multiple of 16
  std::vector<uint64_t> shape;                 // in elements
  std::vector<uint64_t> strides;               // in bytes, of every dimension but the innermost
  std::vector<uint32_t> box;                   // elements of the tensor that a box spans
  std::vector<uint32_t> element_strides = {};  // steps within a box; empty: all are 1
  Swizzle swizzle = Swizzle::kNone;
  L2Promotion l2_promotion = L2Promotion::kNone;
  OutsideFill fill = OutsideFill::kZeros;
  uint64_t bytes = 0;  // of the memory from `address` on; 0 if unknown

  std::size_t rank() const { return shape.size(); }
  // The innermost dimension has none: the driver ignores that number.
  uint32_t element_stride(std::size_t dimension) const {
    return dimension == 0 || element_strides.empty() ? 1 : element_strides[dimension];
  }
  // Elements that a box takes along a dimension.
  uint32_t taken(std::size_t dimension) const {
    const uint32_t step = element_stride(dimension);
    return (box[dimension] + step - 1) / step;
  }
  // Bytes of a whole box, even outside the tensor: an mbarrier must expect as many of a load.
  uint32_t box_bytes() const {
    uint32_t result = facts_of(type).bytes;
    for (std::size_t d = 0; d < rank(); ++d) result *= taken(d);
    return result;
  }
  auto members() const {
    return std::tie(type, address, shape, strides, box, element_strides, swizzle, l2_promotion,
                    fill, bytes);
  }
};

inline bool operator<(const TensorDescription& a, const TensorDescription& b) {
  return a.members() < b.members();
}

namespace tensor_faults {

inline std::string text(uint64_t number) { return std::to_string(number); }
constexpr uint32_t kUnit = 16;

// How many dimensions each member has, and the address.
inline std::string of_counts(const TensorDescription& tensor) {
  const std::size_t rank = tensor.rank();
  if (rank == 0 || rank > kMostTensorRank) {
    return "the shape has " + text(rank) + " dimensions, and must have 1 to 5";
  }
  if (tensor.strides.size() != rank - 1) {
    return text(tensor.strides.size()) + " strides are given for " + text(rank) +
           " dimensions: every dimension but the innermost has one";
  }
  if (tensor.box.size() != rank) {
    return "the box has " + text(tensor.box.size()) + " dimensions, and the shape " + text(rank);
  }
  if (!tensor.element_strides.empty() && tensor.element_strides.size() != rank) {
    return text(tensor.element_strides.size()) + " element strides are given for " + text(rank) +
           " dimensions";
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.address);
  if (address == 0) return "the address is null";
  if (address % kUnit != 0) return "the address " + text(address) + " is no multiple of 16";
  return "";
}

inline std::string of_dimension(const TensorDescription& tensor, std::size_t d) {
  constexpr uint64_t kMostElements = uint64_t{1} << 32, kMostStride = uint64_t{1} << 40;
  constexpr uint32_t kMostBox = 256, kMostElementStride = 8;
  const std::string in_dimension = " in dimension " + text(d);
  if (tensor.shape[d] == 0 || tensor.shape[d] > kMostElements) {
    return "the shape has " + text(tensor.shape[d]) + " elements" + in_dimension +
           ", and must have 1 to 2^32";
  }
  if (d > 0 && tensor.strides[d - 1] % kUnit != 0) {
    return "the stride is " + text(tensor.strides[d - 1]) + " bytes" + in_dimension +
           ", no multiple of 16";
  }
  if (d > 0 && tensor.strides[d - 1] >= kMostStride) {
    return "the stride is " + text(tensor.strides[d - 1]) + " bytes" + in_dimension +
           ", and must be less than 2^40";
  }
  if (tensor.box[d] == 0 || tensor.box[d] > kMostBox) {
    return "the box has " + text(tensor.box[d]) + " elements" + in_dimension +
           ", and must have 1 to 256";
  }
  if (tensor.element_strides.empty()) return "";
  if (tensor.element_strides[d] == 0 || tensor.element_strides[d] > kMostElementStride) {
    return "the element stride is " + text(tensor.element_strides[d]) + in_dimension +
           ", and must be 1 to 8";
  }
  return "";
}

// The box in the innermost dimension, and the fill.
inline std::string of_box(const TensorDescription& tensor) {
  const TensorTypeFacts& type = facts_of(tensor.type);
  const uint32_t inner_bytes = tensor.box[0] * type.bytes;
  if (inner_bytes % kUnit != 0) {
    return "the box is " + text(inner_bytes) +
           " bytes wide in the innermost dimension, no multiple of 16";
  }
  const unsigned span = span_of(tensor.swizzle);
  if (span != 0 && inner_bytes > span) {
    return "the box is " + text(inner_bytes) + " bytes wide in the innermost dimension, and a " +
           text(span) + "-byte swizzle allows " + text(span);
  }
  if (tensor.fill == OutsideFill::kNan && !type.is_float) {
    return std::string("elements of type ") + type.name + " cannot be filled with NaN";
  }
  return "";
}

inline std::string of_bytes(const TensorDescription& tensor) {
  if (tensor.bytes == 0) return "";
  __extension__ using Wide = unsigned __int128;  // strides of 2^40 times 2^32 elements
  Wide end = Wide{tensor.shape[0]} * facts_of(tensor.type).bytes;
  for (std::size_t d = 1; d < tensor.rank(); ++d) {
    end += Wide{tensor.shape[d] - 1} * tensor.strides[d - 1];
  }
  if (end > tensor.bytes) {
    const bool is_countable = end <= UINT64_MAX;
    return "the buffer has " + text(tensor.bytes) +
           " bytes from the address on, and the shape needs " +
           (is_countable ? text(static_cast<uint64_t>(end)) : "more than 2^64");
  }
  return "";
}

}  // namespace tensor_faults

// Why no tensor map can be encoded from a description; "" if one can.
inline std::string fault_of(const TensorDescription& tensor) {
  std::string fault = tensor_faults::of_counts(tensor);
  for (std::size_t d = 0; fault.empty() && d < tensor.rank(); ++d) {
    fault = tensor_faults::of_dimension(tensor, d);
  }
  if (fault.empty()) fault = tensor_faults::of_box(tensor);
  return fault.empty() ? tensor_faults::of_bytes(tensor) : fault;
}

}  // namespace diglot
