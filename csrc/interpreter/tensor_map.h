// Tensor maps where kernels are interpreted: their encoding, the boxes that they describe, and
// where each byte of a box lies. Nothing here knows of blocks or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "diglot/mma/tensor_description.h"

namespace diglot::interpreter {

constexpr std::size_t kTensorMapBytes = 128;

// Writes kTensorMapBytes, from a description without a fault.
void encode_tensor_map(const TensorDescription& tensor, void* map);
// The description that a map was encoded from; nothing where there is no map.
std::optional<TensorDescription> decode_tensor_map(const void* map);

enum class BoxMove { kLoad, kStore };  // a reduction is a store

// Why an instruction cannot move a box; "" if it can. `shared` is the address in the window of
// shared memory.
std::string fault_of_box(const TensorDescription& tensor, const Coordinates& begin,
                         std::uint32_t shared, BoxMove move);

// A stretch of a box whose bytes are neighbours in global memory and in shared memory.
struct BoxRun {
  std::uint64_t global;  // outside the tensor: where they would lie if it went on
  std::uint32_t shared;  // address in the window
  std::uint32_t bytes;
  bool is_inside;  // the tensor
};

// Calls `visit` for the runs of a box without a fault. Together they have box_bytes().
void walk_box(const TensorDescription& tensor, const Coordinates& begin, std::uint32_t shared,
              const std::function<void(const BoxRun&)>& visit);

// Writes what a load finds outside the tensor.
void fill_outside(const TensorDescription& tensor, void* to, std::size_t bytes);

// Why elements of a type are not reduced so; "" if they are.
std::string fault_of_reduction(TensorType type, Reduction reduction);
// Combines elements into global memory, each atomically.
void reduce_into(void* global, const void* values, std::size_t bytes, TensorType type,
                 Reduction reduction);

}  // namespace diglot::interpreter
