// Into how many parts a product's K is split: a model of its time, and the choice. Twin of
// triton_ops/launch/product_splits.py.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diglot/products/schedule.cuh"

namespace diglot {

// Tiles of C, and what one takes. The unit of time is what a step of 64 along K takes for a column
// of 128 rows, at full speed: 3 ns of an H200.
struct TileWork {
  int64_t tiles;
  int steps;      // along K
  double step;    // time of a step of a tile
  int64_t bytes;  // of a tile's sums
  int counters;   // that a tile needs
};

// Estimates: nobody has measured them.
constexpr double kSplitRound = 512;    // a part's beginning and end, where no others overlap them
constexpr double kSplitMeeting = 512;  // arrivals, until the last has read what others left
constexpr double kSplitSpeed = 128;    // bytes of sums that an SM writes or reads in a unit of time
constexpr int kMostParts = 16;         // that the model considers
constexpr int64_t kMostSplitBytes = 64 << 20;  // scratch that a stream keeps

inline int64_t rounded_up_quotient(int64_t count, int64_t by) { return (count + by - 1) / by; }

inline bool can_split(const TileWork& work, int parts) {
  return parts <= work.steps && work.tiles * work.counters <= kSplitCounters &&
         work.tiles * parts * work.bytes <= kMostSplitBytes;
}

// Rounds of tiles, times their steps; with several parts, also what the sums' way through memory
// takes.
inline double time_of(const TileWork& work, int parts, int64_t multiprocessors) {
  const auto rounds = static_cast<double>(rounded_up_quotient(work.tiles * parts, multiprocessors));
  const double sums =
      rounds * work.step * static_cast<double>(rounded_up_quotient(work.steps, parts));
  if (parts == 1) return sums;
  const double moved = static_cast<double>(work.bytes) * (rounds + parts) / kSplitSpeed;
  return sums + rounds * kSplitRound + kSplitMeeting + moved;
}

// The parts that the caller asked for, if there is room for them. If `asked` is 0: those that take
// the least time.
inline int parts_of(const TileWork& work, int64_t asked, int64_t multiprocessors) {
  if (asked > 0) {
    const int parts = static_cast<int>(std::min<int64_t>(asked, work.steps));
    return can_split(work, parts) ? parts : 1;
  }
  int best = 1;
  for (int parts = 2; parts <= kMostParts && can_split(work, parts); ++parts) {
    if (time_of(work, parts, multiprocessors) < time_of(work, best, multiprocessors)) best = parts;
  }
  return best;
}

}  // namespace diglot
