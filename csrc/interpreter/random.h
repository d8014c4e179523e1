// Random numbers that a seed decides: xorshift64.
#pragma once

#include <cstdint>

namespace diglot::interpreter {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed | 1) {}

  std::uint64_t next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return state_;
  }
  // From 0 to `count` - 1.
  std::uint64_t below(std::uint64_t count) { return (next() >> 16) % count; }

 private:
  std::uint64_t state_;
};

}  // namespace diglot::interpreter
