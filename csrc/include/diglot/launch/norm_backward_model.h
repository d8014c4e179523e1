// The analytic model of the norms' derivatives: how long a launch takes, predicted from facts of
// the device and of the launch. The planner (norm_backward.h) takes the shape with the least time.
//
// The constants are cycles of an SM. They were fitted to the times of layer norm's plans at 17
// shapes of bfloat16 on an H200, with units of 16 bytes. What narrow units add is an estimate from
// machine code. How work and memory overlap was fitted to 89 calls of both norms.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// The most shared memory that a block uses for other purposes, with the driver's part.
constexpr int kNormOtherBytes = 2 * 1024 + 64;

// What the model asks of a launch.
struct NormWork {
  int columns;                // of a row, that a thread holds
  bool is_wide;               // of its units
  int64_t rounds;             // rows of a team, one after the other
  int64_t blocks;             // of the launch
  int cluster_blocks, warps;  // of a cluster; of a block
  bool spans_grid;            // all blocks share every row
  int64_t shared_bytes;       // of a block
  int64_t bytes;              // that all blocks read and write
};

// Cycles that a second launch takes, which adds up `bytes` of sums of groups.
inline int64_t predict_sum_cycles(int multiprocessors, int64_t bytes) {
  return 1800 + bytes / (16 * int64_t{multiprocessors});
}

// Cycles until the last block of a launch, and of the second one, ends. `shared_bytes`: of an SM.
inline int64_t predict_cycles(int multiprocessors, int shared_bytes, const NormWork& work) {
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  constexpr int64_t kSchedulers = 4, kRegisters = 65536, kThreads = 2048;  // of an SM
  constexpr int64_t kBytes = 16;        // of memory, in a cycle, for each SM
  constexpr int64_t kMostBytes = 32;    // that one SM gets, if the others ask for little
  constexpr int64_t kLaunched = 16000;  // until kernels start and have ended
  constexpr int64_t kZeroed = 2000;     // to make a grid's barrier zero (docs/barriers.md)
  const int64_t all = multiprocessors;
  // Clusters must lie within a part of the GPU, so large ones leave some SMs idle.
  const int64_t used = work.cluster_blocks > 2 ? std::max<int64_t>(all * 10 / 11, 1) : all;
  // Blocks that an SM runs at once, by shared memory, registers and threads. The compiler gives no
  // thread more registers than let a block of the most threads run.
  const int threads = work.warps * kWarpLanes;
  const int64_t registers =
      std::min<int64_t>(32 + 6 * work.columns, kRegisters / kNormResidentThreads / 8 * 8);
  const int64_t at_once = std::clamp<int64_t>(
      shared_bytes / (work.shared_bytes + kNormOtherBytes), 1,
      std::max<int64_t>(std::min(kRegisters / registers, kThreads) / threads, 1));
  const int64_t waves = quotient(work.blocks, used * at_once);
  const int64_t beside = quotient(work.blocks, used * waves);
  // Instructions of a warp for a row. An SM issues those of all its warps; a warp's own wait for
  // each other.
  const int64_t column = 12 + (work.is_wide ? 0 : 8);
  const int64_t issued = 24 + column * work.columns;
  const int64_t busy = std::max(beside * work.warps * issued / kSchedulers, 7 * issued / 2);
  // Then a team waits for its sums, and a cluster for other blocks.
  int64_t round = busy + 640;
  if (work.cluster_blocks > 1) round += 330;
  for (int blocks = 1; blocks < work.cluster_blocks; blocks *= 2) round += 350;
  const int64_t launched = kLaunched + (work.spans_grid ? kZeroed : 0);
  // When a call begins, no cache has the instructions, and rows wait for them.
  const int64_t fetched = 160 * std::max(work.columns - 16, 0);
  const int64_t computed = work.rounds * waves * round;
  const int64_t busy_bytes = std::min(all * kBytes, std::min(work.blocks, all) * kMostBytes);
  const int64_t moved = std::max<int64_t>(work.bytes / busy_bytes, 1);
  // The longer of the two decides, and the shorter one counts as far as it comes near.
  const auto longer = static_cast<double>(std::max(computed, moved));
  const double near = static_cast<double>(std::min(computed, moved)) / longer;
  const auto taken =
      static_cast<int64_t>(longer + longer * near * near * near * near * near * near / 3);
  // At the grid's barrier (docs/barriers.md) memory waits, too.
  const int64_t met = work.spans_grid ? 3300 * work.rounds * waves : 0;
  return launched + fetched + taken + met;
}

}  // namespace diglot
