// Tensor maps without a kernel, for tests/test_tensor_map.py: they are encoded, and boxes are moved
// between global memory and a window of shared memory that the test holds. No PyTorch: the test
// calls these functions through ctypes.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "diglot/mma/tensor_map.h"

namespace {

using diglot::Coordinates;
using diglot::TensorDescription;

constexpr int kMost = 6;  // one more than there may be

// As in tests/tensor_maps.py.
struct Description {
  std::uint32_t type;
  std::uint32_t rank, strides_given, box_rank, element_strides_given;
  const char* address;
  std::uint64_t shape[kMost], strides[kMost];
  std::uint32_t box[kMost], element_strides[kMost];
  std::uint32_t swizzle, l2_promotion, fill;
  std::uint64_t bytes;
};

TensorDescription tensor_of(const Description& from) {
  TensorDescription tensor;
  tensor.type = static_cast<diglot::TensorType>(from.type);
  tensor.address = from.address;
  tensor.shape.assign(from.shape, from.shape + from.rank);
  tensor.strides.assign(from.strides, from.strides + from.strides_given);
  tensor.box.assign(from.box, from.box + from.box_rank);
  tensor.element_strides.assign(from.element_strides,
                                from.element_strides + from.element_strides_given);
  tensor.swizzle = static_cast<diglot::Swizzle>(from.swizzle);
  tensor.l2_promotion = static_cast<diglot::L2Promotion>(from.l2_promotion);
  tensor.fill = static_cast<diglot::OutsideFill>(from.fill);
  tensor.bytes = from.bytes;
  return tensor;
}

Coordinates coordinates_of(const std::int32_t* at, int rank) {
  Coordinates result(0);
  std::copy(at, at + rank, result.at);
  result.rank = rank;
  return result;
}

#define DIGLOT_EXPORT extern "C" __attribute__((visibility("default")))

// What a function throws, or returns, as text.
template <typename Function>
const char* answer_of(const Function& function) {
  static thread_local std::string answer;
  try {
    answer = function();
  } catch (const std::invalid_argument& error) {
    answer = error.what();
  }
  return answer.c_str();
}

}  // namespace

// With `argument_bytes`, a launch's arguments are as many bytes from the address on.
DIGLOT_EXPORT const char* encode(const Description* description, std::uint64_t argument_bytes,
                                 void* map) {
  return answer_of([&] {
    const TensorDescription tensor = tensor_of(*description);
    diglot::TensorMap encoded;
    if (argument_bytes == 0) {
      encoded = diglot::tensor_map(tensor);
    } else {
      const diglot::interpreter::Range range{description->address,
                                             description->address + argument_bytes};
      const diglot::interpreter::Arguments scope(std::vector{range});
      encoded = diglot::tensor_map(tensor);
    }
    std::memcpy(map, &encoded, sizeof(encoded));
    return std::string();
  });
}

// Bytes of a map's box; 0 if it is no map.
DIGLOT_EXPORT std::uint32_t box_bytes(const void* map) {
  const auto tensor = diglot::interpreter::decode_tensor_map(map);
  return tensor ? tensor->box_bytes() : 0;
}

// Whether a map is decoded to what it was encoded from.
DIGLOT_EXPORT bool is_decoded(const Description* description, const void* map) {
  TensorDescription expected = tensor_of(*description);
  if (expected.element_strides.empty()) expected.element_strides.assign(expected.rank(), 1);
  expected.element_strides[0] = 1;
  const auto found = diglot::interpreter::decode_tensor_map(map);
  return found && found->members() == expected.members();
}

// Moves a box: 0 loads, 1 stores, and from 2 on it reduces. `window` is shared memory from address
// 0 on. `moved` counts the bytes of all runs.
DIGLOT_EXPORT const char* move(const void* map, const std::int32_t* at, int rank,
                               std::uint32_t shared, int what, char* window, std::uint32_t* moved) {
  using namespace diglot::interpreter;
  return answer_of([&] {
    const auto tensor = decode_tensor_map(map);
    if (!tensor) return std::string("it is no tensor map");
    const Coordinates begin = coordinates_of(at, rank);
    const auto reduction = static_cast<diglot::Reduction>(what - 2);
    std::string fault =
        fault_of_box(*tensor, begin, shared, what == 0 ? BoxMove::kLoad : BoxMove::kStore);
    if (fault.empty() && what >= 2) fault = fault_of_reduction(tensor->type, reduction);
    if (!fault.empty()) return fault;
    walk_box(*tensor, begin, shared, [&](const BoxRun& run) {
      *moved += run.bytes;
      auto* const global = reinterpret_cast<char*>(run.global);
      char* const local = window + run.shared;
      if (what == 0 && run.is_inside) std::memcpy(local, global, run.bytes);
      if (what == 0 && !run.is_inside) fill_outside(*tensor, local, run.bytes);
      if (what == 1 && run.is_inside) std::memcpy(global, local, run.bytes);
      if (what >= 2 && run.is_inside) {
        reduce_into(global, local, run.bytes, tensor->type, reduction);
      }
    });
    return std::string();
  });
}
