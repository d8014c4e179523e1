#include "interpreter/registers.h"

#include <algorithm>

#include "interpreter/interpreter.h"

namespace diglot::interpreter {

namespace {

constexpr int kMultiprocessorRegisters = 65536;
constexpr int kUnit = 8, kLeast = 24, kMost = 256;

}  // namespace

Registers::Registers(int threads) {
  const int warps = (threads + kWarp - 1) / kWarp;
  const int count = kMultiprocessorRegisters / (warps * kWarp) / kUnit * kUnit;
  counts_.assign(warps, std::min(count, kMost - kUnit));
}

std::string Registers::ask(int warp, int count, bool is_more) const {
  const std::string asked = "setmaxnreg to " + std::to_string(count);
  if (count < kLeast || count > kMost || count % kUnit != 0) {
    return asked + ": a multiple of 8 from 24 to 256 is possible";
  }
  if (is_more ? count < counts_[warp] : count > counts_[warp]) {
    return asked + (is_more ? " is no increase from " : " is no decrease from ") +
           std::to_string(counts_[warp]) + " registers a thread";
  }
  return "";
}

bool Registers::try_take(int warp, int count) {
  const int more = (count - counts_[warp]) * kWarp;
  if (more > left_) return false;
  left_ -= more;
  counts_[warp] = count;
  return true;
}

std::string Registers::account(int warp, int count) const {
  return "a warp of " + std::to_string(counts_[warp]) + " registers a thread asks for " +
         std::to_string(count) + ", which takes " +
         std::to_string((count - counts_[warp]) * kWarp) + " registers, and the block has " +
         std::to_string(left_) + " left";
}

}  // namespace diglot::interpreter
