#include "interpreter/tensor_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "interpreter/include/cuda_bf16.h"
#include "interpreter/include/cuda_fp16.h"

namespace diglot::interpreter {

namespace {

constexpr std::uint32_t kChunk = 16;       // what a swizzle moves as a whole
constexpr std::uint32_t kAlignment = 128;  // of a box in shared memory
constexpr std::int64_t kUnit = 16;         // bytes: of the innermost coordinate

// What the 128 bytes of a map hold.
struct Encoded {
  std::uint64_t mark;
  std::uint64_t sum;  // of what follows
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t strides[kMostTensorRank - 1];
  std::uint32_t last[kMostTensorRank];  // elements less one, which may be 2^32 - 1
  std::uint8_t last_of_box[kMostTensorRank];
  std::uint8_t element_strides[kMostTensorRank];
  std::uint8_t type, rank, swizzle, l2_promotion, fill;
};
static_assert(sizeof(Encoded) <= kTensorMapBytes);

constexpr std::uint64_t kMark = 0x70616d20726f736e;

std::uint64_t sum_of(const Encoded& encoded) {  // FNV-1a
  std::uint64_t sum = 0xcbf29ce484222325;
  const auto* const begin = reinterpret_cast<const unsigned char*>(&encoded);
  for (std::size_t i = offsetof(Encoded, address); i < sizeof(Encoded); ++i) {
    sum = (sum ^ begin[i]) * 0x100000001b3;
  }
  return sum;
}

}  // namespace

void encode_tensor_map(const TensorDescription& tensor, void* map) {
  Encoded encoded;
  std::memset(&encoded, 0, sizeof(encoded));  // padding too, for the sum
  encoded.mark = kMark;
  encoded.address = reinterpret_cast<std::uint64_t>(tensor.address);
  encoded.bytes = tensor.bytes;
  for (std::size_t d = 0; d < tensor.rank(); ++d) {
    if (d > 0) encoded.strides[d - 1] = tensor.strides[d - 1];
    encoded.last[d] = static_cast<std::uint32_t>(tensor.shape[d] - 1);
    encoded.last_of_box[d] = static_cast<std::uint8_t>(tensor.box[d] - 1);
    encoded.element_strides[d] = static_cast<std::uint8_t>(tensor.element_stride(d));
  }
  encoded.type = static_cast<std::uint8_t>(tensor.type);
  encoded.rank = static_cast<std::uint8_t>(tensor.rank());
  encoded.swizzle = static_cast<std::uint8_t>(tensor.swizzle);
  encoded.l2_promotion = static_cast<std::uint8_t>(tensor.l2_promotion);
  encoded.fill = static_cast<std::uint8_t>(tensor.fill);
  encoded.sum = sum_of(encoded);
  std::memset(map, 0, kTensorMapBytes);
  std::memcpy(map, &encoded, sizeof(encoded));
}

std::optional<TensorDescription> decode_tensor_map(const void* map) {
  Encoded encoded;
  std::memcpy(&encoded, map, sizeof(encoded));
  if (encoded.mark != kMark || encoded.sum != sum_of(encoded)) return std::nullopt;
  TensorDescription tensor;
  tensor.type = static_cast<TensorType>(encoded.type);
  tensor.address = reinterpret_cast<const void*>(encoded.address);
  tensor.strides.assign(encoded.strides, encoded.strides + encoded.rank - 1);
  tensor.element_strides.assign(encoded.element_strides, encoded.element_strides + encoded.rank);
  for (std::size_t d = 0; d < encoded.rank; ++d) {
    tensor.shape.push_back(std::uint64_t{encoded.last[d]} + 1);
    tensor.box.push_back(std::uint32_t{encoded.last_of_box[d]} + 1);
  }
  tensor.swizzle = static_cast<Swizzle>(encoded.swizzle);
  tensor.l2_promotion = static_cast<L2Promotion>(encoded.l2_promotion);
  tensor.fill = static_cast<OutsideFill>(encoded.fill);
  tensor.bytes = encoded.bytes;
  return tensor;
}

std::string fault_of_box(const TensorDescription& tensor, const Coordinates& begin,
                         std::uint32_t shared, BoxMove move) {
  const auto text = [](std::uint64_t number) { return std::to_string(number); };
  const std::string side = move == BoxMove::kLoad ? "destination" : "source";
  if (tensor.rank() != static_cast<std::size_t>(begin.rank)) {
    return text(begin.rank) + " coordinates are given, and the tensor map has " +
           text(tensor.rank()) + " dimensions";
  }
  if (shared % kAlignment != 0) {
    return "the " + side + " is at shared address " + text(shared) + ", no multiple of 128";
  }
  const std::uint32_t span = span_of(tensor.swizzle);
  if (span != 0 && shared % (8 * span) != 0) {
    return "the " + side + " is at shared address " + text(shared) + ", no multiple of " +
           text(8 * span) + ", after which a " + text(span) + "-byte swizzle repeats";
  }
  const std::uint32_t element = facts_of(tensor.type).bytes;
  if (begin.at[0] * static_cast<std::int64_t>(element) % kUnit != 0) {
    return "coordinate 0 is " + std::to_string(begin.at[0]) + ", of elements of " + text(element) +
           " bytes: the innermost must be a multiple of 16 bytes, or a GPU stops at an illegal "
           "instruction";
  }
  const std::uint32_t width = tensor.box[0] * element;
  if (width < span) {
    return "the box is " + text(width) +
           " bytes wide in the innermost dimension, and its swizzle " + text(span) +
           ": the interpreter knows only boxes as wide as their swizzle";
  }
  if (move == BoxMove::kLoad) return "";
  for (int d = 0; d < begin.rank; ++d) {  // PTX ISA, "Restriction on Tensor Copy instructions"
    if (begin.at[d] >= 0) continue;
    return "coordinate " + text(d) + " is " + std::to_string(begin.at[d]) +
           ": only a load may begin at a negative one";
  }
  return "";
}

void walk_box(const TensorDescription& tensor, const Coordinates& begin, std::uint32_t shared,
              const std::function<void(const BoxRun&)>& visit) {
  const std::int64_t element = facts_of(tensor.type).bytes;
  const std::int64_t columns = static_cast<std::int64_t>(tensor.shape[0]);
  const std::uint32_t width = tensor.taken(0) * static_cast<std::uint32_t>(element);
  const auto bytes_until = [&](std::int64_t column) {  // of a row of the box
    const std::int64_t bytes = (column - begin.at[0]) * element;
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(bytes, 0, width));
  };
  const std::uint32_t inside_begin = bytes_until(0), inside_end = bytes_until(columns);
  const std::uint32_t step = tensor.swizzle == Swizzle::kNone ? width : kChunk;

  std::uint32_t index[kMostTensorRank] = {};
  std::uint32_t rows = 1;
  for (std::size_t d = 1; d < tensor.rank(); ++d) rows *= tensor.taken(d);
  for (std::uint32_t row = 0; row < rows; ++row) {
    bool is_inside = true;
    std::uint64_t global = reinterpret_cast<std::uint64_t>(tensor.address) +
                           static_cast<std::uint64_t>(begin.at[0] * element);
    for (std::size_t d = 1; d < tensor.rank(); ++d) {
      const std::int64_t at = begin.at[d] + std::int64_t{index[d]} * tensor.element_stride(d);
      is_inside &= static_cast<std::uint64_t>(at) < tensor.shape[d];  // no negative one is
      global += static_cast<std::uint64_t>(at) * tensor.strides[d - 1];
    }
    for (std::uint32_t offset = 0; offset < width;) {
      std::uint32_t end = std::min(width, offset / step * step + step);
      for (const std::uint32_t edge : {inside_begin, inside_end}) {
        if (edge > offset) end = std::min(end, edge);
      }
      const bool is_there = is_inside && offset >= inside_begin && offset < inside_end;
      visit({global + offset, swizzled(shared + row * width + offset, tensor.swizzle), end - offset,
             is_there});
      offset = end;
    }
    for (std::size_t d = 1; d < tensor.rank() && ++index[d] == tensor.taken(d); ++d) index[d] = 0;
  }
}

void fill_outside(const TensorDescription& tensor, void* to, std::size_t bytes) {
  std::memset(to, 0, bytes);
  if (tensor.fill == OutsideFill::kZeros) return;
  // PTX does not tell the bits of its NaN: this is one in every floating type.
  const std::uint16_t nan = 0x7ff7;
  for (std::size_t i = 0; i < bytes; i += sizeof(nan)) {
    std::memcpy(static_cast<char*>(to) + i, &nan, sizeof(nan));
  }
}

// --- reductions ----------------------------------------------------------------------------------

namespace {

const char* name_of(Reduction reduction) {
  static const char* const names[] = {"add", "min", "max", "and", "or", "xor"};
  return names[static_cast<int>(reduction)];
}

bool is_bitwise(Reduction reduction) { return reduction >= Reduction::kAnd; }

template <typename T>
T combine(T a, T b, Reduction reduction) {
  switch (reduction) {
    case Reduction::kMin: return b < a ? b : a;
    case Reduction::kMax: return a < b ? b : a;
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {  // wraps around
    return static_cast<T>(std::uint64_t(a) + std::uint64_t(b));
  } else {
    return a + b;
  }
}

template <typename Bits>
Bits combine_bits(Bits a, Bits b, Reduction reduction) {
  switch (reduction) {
    case Reduction::kAnd: return a & b;
    case Reduction::kOr: return a | b;
    default: return a ^ b;
  }
}

// Of values of a 16-bit floating type. A minimum with a NaN is the other operand.
double combine_halves(double x, double y, Reduction reduction) {
  if (reduction == Reduction::kMin) return std::fmin(x, y);
  if (reduction == Reduction::kMax) return std::fmax(x, y);
  return x + y;  // the bits that a double drops of a sum decide no tie
}

// Replaces each word by a function of it and of another, atomically.
template <typename Bits, typename Function>
void update(void* words, const void* values, std::size_t bytes, const Function& function) {
  for (std::size_t i = 0; i < bytes; i += sizeof(Bits)) {
    auto* const word = reinterpret_cast<Bits*>(static_cast<char*>(words) + i);
    Bits value;
    std::memcpy(&value, static_cast<const char*>(values) + i, sizeof(value));
    Bits old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, function(old, value), true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
  }
}

template <typename T, typename Bits>
void reduce_as(void* global, const void* values, std::size_t bytes, Reduction reduction) {
  update<Bits>(global, values, bytes, [reduction](Bits a, Bits b) {
    if (is_bitwise(reduction)) return combine_bits(a, b, reduction);
    T x, y;
    std::memcpy(&x, &a, sizeof(x));
    std::memcpy(&y, &b, sizeof(y));
    x = combine(x, y, reduction);
    std::memcpy(&a, &x, sizeof(a));
    return a;
  });
}

}  // namespace

// PTX ISA, "cp.reduce.async.bulk.tensor". Bitwise reductions are of 32 or 64 bits.
std::string fault_of_reduction(TensorType type, Reduction reduction) {
  const TensorTypeFacts& facts = facts_of(type);
  bool is_known = facts.bytes >= 4 && !facts.is_float;
  if (type == TensorType::kInt64) is_known = reduction != Reduction::kAdd;
  if (type == TensorType::kFloat16 || type == TensorType::kBfloat16) {
    is_known = !is_bitwise(reduction);
  }
  if (type == TensorType::kFloat32) is_known = reduction == Reduction::kAdd;
  if (is_known) return "";
  return std::string("no reduction \"") + name_of(reduction) + "\" is of type " + facts.name;
}

void reduce_into(void* global, const void* values, std::size_t bytes, TensorType type,
                 Reduction reduction) {
  const auto with = [&](auto function) { function(global, values, bytes, reduction); };
  switch (type) {
    case TensorType::kUint32: return with(reduce_as<std::uint32_t, std::uint32_t>);
    case TensorType::kInt32: return with(reduce_as<std::int32_t, std::uint32_t>);
    case TensorType::kUint64: return with(reduce_as<std::uint64_t, std::uint64_t>);
    case TensorType::kInt64: return with(reduce_as<std::int64_t, std::uint64_t>);
    case TensorType::kFloat32: return with(reduce_as<float, std::uint32_t>);
    case TensorType::kFloat16:
      return update<std::uint16_t>(global, values, bytes, [&](std::uint16_t a, std::uint16_t b) {
        const double x = __half2float({a}), y = __half2float({b});
        return __double2half(combine_halves(x, y, reduction)).bits;
      });
    default:
      return update<std::uint16_t>(global, values, bytes, [&](std::uint16_t a, std::uint16_t b) {
        const double x = __bfloat162float({a}), y = __bfloat162float({b});
        return __double2bfloat16(combine_halves(x, y, reduction)).bits;
      });
  }
}

}  // namespace diglot::interpreter
