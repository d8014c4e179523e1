// Launches of kernels that exchange data between ranks (sync/exchange.cuh).
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "diglot/launch/dispatch.h"
#include "diglot/launch/plan.h"
#include "diglot/sync/exchange.cuh"

namespace diglot {

// Where push's slots and the buffers of a staged pull lie in a workspace, in bytes. A slot holds
// `most_pushed` bytes of data, and a buffer `most_staged` bytes.
struct Rooms {
  int64_t packets, most_pushed, staging, most_staged;
};

struct Protocol {
  bool is_push, is_direct, is_two_shots, is_in_place;

  explicit Protocol(std::string_view name)
      : is_push(name == "push"),
        is_direct(name == "direct shots"),
        is_two_shots(is_direct || name == "two shots" || name == "two shots in place"),
        is_in_place(name == "in place" || name == "two shots in place") {}

  const char* name() const {
    if (is_direct) return "direct shots";
    if (is_two_shots) return is_in_place ? "two shots in place" : "two shots";
    return is_push ? "push" : is_in_place ? "pull in place" : "pull";
  }
};

// Blocks of a launch for that many bytes. A block takes `bytes_of_block` at once. There are at most
// `most` blocks; 0: one for each SM.
inline unsigned exchange_blocks(const Planner& planner, int64_t most, int64_t bytes,
                                int64_t bytes_of_block) {
  if (most <= 0) most = planner.device.multiprocessors();
  const int64_t needed = (bytes + bytes_of_block - 1) / bytes_of_block;
  return static_cast<unsigned>(std::min({needed, most, int64_t{kMostSignalBlocks}}));
}

// A launch of blocks that all run at once, for that many bytes.
inline Launch exchange_launch(const Planner& planner, int64_t most, int64_t bytes,
                              int64_t bytes_of_block, int threads) {
  Launch how{exchange_blocks(planner, most, bytes, bytes_of_block), static_cast<unsigned>(threads)};
  how.is_cooperative = true;
  return how;
}

// Bytes of every rank that a block pulls at once.
inline int64_t pulled_at_once(int64_t ranks) {
  return kPullThreads * kPulledBytes / (ranks <= 2 ? 2 : ranks <= 4 ? 4 : kMostRanks);
}

inline void check_pushed(int64_t bytes, const Rooms& rooms) {
  if (bytes > rooms.most_pushed) {
    throw std::invalid_argument("distributed: more bytes than a slot of packets holds");
  }
}

// Calls function(Op{}, number) with the operation, and its number in reports.
template <typename Function>
void dispatch_op(std::string_view op, Function function) {
  if (op == "sum") return function(Sum{}, 0);
  if (op == "avg") return function(Sum{}, 1);
  if (op == "max") return function(Maximum{}, 2);
  if (op == "min") return function(Minimum{}, 3);
  throw std::invalid_argument("distributed: op must be sum, avg, max or min");
}

template <typename Function>
void dispatch_ranks(int64_t ranks, Function function) {
  if (ranks <= 2) return function(std::integral_constant<int, 2>{});
  if (ranks <= 4) return function(std::integral_constant<int, 4>{});
  if (ranks <= kMostRanks) return function(std::integral_constant<int, kMostRanks>{});
  throw std::invalid_argument("distributed: at most 8 ranks");
}

// Calls function(Type<T>{}) with a floating T that ranks reduce.
template <typename Function>
void dispatch_reduced(DType dtype, Function function) {
  dispatch_floating(dtype, [&](auto type) {
    if constexpr (sizeof(typename decltype(type)::type) == 8) {
      throw std::invalid_argument("distributed: float16, bfloat16 or float32");
    } else {
      function(type);
    }
  });
}

// Plans an exchange of n elements of T in `parts` parts. Longer ones than a staging buffer take
// several launches. Calls push(how) once, or staged(how, first, count) for each range of elements,
// or in_place(how).
template <typename T, typename Push, typename Staged, typename InPlace>
void plan_exchange(Planner& planner, std::string_view protocol, int64_t ranks, int64_t blocks,
                   const Rooms& rooms, int64_t parts, int64_t n, Push push, Staged staged,
                   InPlace in_place) {
  const Protocol way(protocol);
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  const auto launch_of = [&](int64_t part, int64_t bytes_of_block, int threads) {
    return exchange_launch(planner, blocks, part, bytes_of_block, threads);
  };
  const int64_t pulled = pulled_at_once(ranks);
  if (way.is_two_shots) {
    throw std::invalid_argument("distributed: only all_reduce has two shots");
  }
  if (way.is_push) {
    check_pushed(bytes, rooms);
    push(launch_of(bytes, kPushThreads * sizeof(uint2), kPushThreads));
  } else if (way.is_in_place) {
    if (parts > 1 && bytes % kAccessBytes != 0) {
      throw std::invalid_argument("distributed: parts in place begin at multiples of 16 bytes");
    }
    in_place(launch_of(bytes, pulled, kPullThreads));
  } else {
    constexpr int64_t kElements = kAccessBytes / sizeof(T);
    const int64_t vectors = rooms.most_staged / parts / kAccessBytes;
    const int64_t most = vectors * kElements;
    for (int64_t first = 0; first < n; first += most) {
      const int64_t count = std::min(most, n - first);
      staged(launch_of(count * sizeof(T), pulled, kPullThreads), first, count);
    }
  }
  planner.plan.variant = way.name();
}

// Plans an all-reduce of n elements of T in two shots. Where a buffer does not hold them, they take
// several launches. Calls add(shots, how, first, count) for each range of elements.
template <typename T, typename Add>
void plan_two_shots(Planner& planner, std::string_view protocol, int64_t ranks, int64_t blocks,
                    const Rooms& rooms, int64_t n, Add add) {
  const Protocol way(protocol);
  const int64_t held = rooms.most_staged / ranks / kAccessBytes * kAccessBytes / sizeof(T) * ranks;
  const int64_t most = way.is_direct ? n : held;  // no buffer holds direct shots
  for (int64_t first = 0; first < n; first += most) {
    const int64_t count = std::min(most, n - first);
    const int64_t bytes = elements_of_part<T>(count, ranks) * sizeof(T);
    const Launch how = exchange_launch(planner, blocks, bytes, pulled_at_once(ranks), kPullThreads);
    if (way.is_direct) {
      add(std::integral_constant<Shots, Shots::kDirect>{}, how, first, count);
    } else if (way.is_in_place) {
      add(std::integral_constant<Shots, Shots::kInPlace>{}, how, first, count);
    } else {
      add(std::integral_constant<Shots, Shots::kStaged>{}, how, first, count);
    }
  }
  planner.plan.variant = way.name();
}

}  // namespace diglot
