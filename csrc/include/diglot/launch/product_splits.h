// A model of a product's time, and into how many parts its K is split. Twin of
// triton_ops/launch/product_splits.py, which has other constants.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diglot/products/schedule.cuh"

namespace diglot {

// Tiles of C, and what they take. Times are nanoseconds of an H200.
struct TileWork {
  int64_t tiles;
  int steps;               // along K
  double step;             // time of a tile's step
  double end;              // time of a tile's end, which no step overlaps
  int64_t memory;          // bytes of A, B and C
  int64_t bytes;           // of a tile's sums
  int counters;            // that a tile needs
  bool has_turns = false;  // whether half of a block finishes a tile while the other computes one
  int loaded = 0;          // bytes that a block loads in a step, if these may bound it
};

// Fitted to times of an H200: nanoseconds, and bytes in a nanosecond.
constexpr double kSplitRound = 3100;  // of parts that run at once: their ends and arrivals
constexpr double kSplitSums = 120;    // what an SM writes or reads of sums
constexpr double kMeeting = 1500, kMeetingPart = 220;  // of parts that a cluster has, and of each
constexpr double kFromMemory = 4100;                   // what memory gives all SMs
constexpr double kFromCache = 12000;                   // what L2 gives them
constexpr double kHidden = 0.6;  // of the shorter of loading and computing, by the longer one
constexpr int kMostParts = 16;   // that the model considers
constexpr int64_t kMostSplitBytes = 64 << 20;  // scratch that a stream keeps

inline int64_t rounded_up_quotient(int64_t count, int64_t by) { return (count + by - 1) / by; }

inline bool can_split(const TileWork& work, int parts) {
  return parts <= work.steps && work.tiles * work.counters <= kSplitCounters &&
         work.tiles * parts * work.bytes <= kMostSplitBytes;
}

// The time after a launch's beginning. The busiest SM computes its rounds of steps, while memory
// gives the operands. In a step, the L2 cache gives all blocks that run what they load. With
// several parts, sums go through memory after that.
inline double time_of(const TileWork& work, int parts, int64_t multiprocessors) {
  const int64_t blocks = work.tiles * parts;
  const int64_t full_rounds = rounded_up_quotient(blocks, multiprocessors) - 1;
  const auto rounds = static_cast<double>(full_rounds + 1);
  const auto steps_of = [&](int64_t running) {
    const double loading = static_cast<double>(running * work.loaded) / kFromCache;
    return std::max(work.step, loading) *
           static_cast<double>(rounded_up_quotient(work.steps, parts));
  };
  const double end = (work.has_turns ? 2 : 1) * work.end;  // by half of the threads
  const double steps = steps_of(multiprocessors), tile = steps + end;
  const double turn = work.has_turns ? std::max(steps, tile / 2) : tile;
  const double last = steps_of(blocks - full_rounds * multiprocessors) + end;
  const double computing = last + static_cast<double>(full_rounds) * turn;
  const double loading = static_cast<double>(work.memory) / kFromMemory;
  const double time = computing + loading - kHidden * std::min(computing, loading);
  if (parts == 1) return time;
  return time + rounds * kSplitRound +
         static_cast<double>(work.bytes) * (rounds + parts) / kSplitSums;
}

// The last round of whole tiles, with helpers if there is room for their sums. Nobody has measured
// them yet: the steps that a part costs are a guess.
inline HelpedRound helped_round(const TileWork& work, int64_t multiprocessors) {
  constexpr double kPartEnds = 1000;  // nanoseconds: its last products, and its arrival
  const double cost = (kPartEnds + static_cast<double>(work.bytes) / kSplitSums) / work.step;
  const HelpedRound round = HelpedRound::of(work.tiles, work.steps, multiprocessors,
                                            static_cast<int>(std::min(cost + 1, 1e6)));
  const bool has_room = round.tiles * work.counters <= kSplitCounters &&
                        round.slots() * work.bytes <= kMostSplitBytes;
  return has_room ? round : HelpedRound{};
}

// The time with helpers, after a launch's beginning.
inline double time_helped(const TileWork& work, const HelpedRound& round, int64_t multiprocessors) {
  TileWork before = work, last = work;
  before.tiles = work.tiles - round.tiles;
  last.tiles = round.tiles + round.helpers, last.steps = round.kept;
  // Memory gives the operands of all rounds while these compute.
  const double share = static_cast<double>(before.tiles) / static_cast<double>(work.tiles);
  before.memory = static_cast<int64_t>(static_cast<double>(work.memory) * share);
  last.memory = work.memory - before.memory;
  const double whole = before.tiles > 0 ? time_of(before, 1, multiprocessors) : 0;
  int parts = 0;  // that the last block of a tile adds up, at most
  for (int tile = 0; tile < round.tiles; ++tile) parts = std::max(parts, round.parts(tile));
  return whole + time_of(last, 1, multiprocessors) + kSplitRound +
         static_cast<double>(work.bytes) * (1 + parts) / kSplitSums;
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

// The time where a cluster has the parts of a tile. Their sums go through shared memory, and all of
// its blocks finish the tile.
inline double time_in_cluster(const TileWork& work, int parts, int64_t multiprocessors) {
  if (parts == 1) return time_of(work, 1, multiprocessors);
  TileWork each = work;
  each.tiles *= parts;
  each.steps = static_cast<int>(rounded_up_quotient(work.steps, parts));
  return time_of(each, 1, multiprocessors) + kMeeting + kMeetingPart * parts +
         static_cast<double>(work.bytes) / kSplitSums;
}

// How many blocks run at once in clusters of `blocks`. A GPC runs only whole clusters. On an H200,
// clusters of four could use seven eighths of the SMs, and larger ones fewer.
inline int64_t places_in_clusters(int64_t blocks, int64_t multiprocessors) {
  return blocks > 4   ? multiprocessors * 5 / 8
         : blocks > 2 ? multiprocessors * 7 / 8
                      : multiprocessors;
}
// How many such clusters run at once, at least one.
inline int64_t clusters_at_once(int64_t blocks, int64_t multiprocessors) {
  return std::max<int64_t>(places_in_clusters(blocks, multiprocessors) / blocks, 1);
}

// The parts that the caller asked for, if a cluster can have them. If `asked` is 0: those that take
// the least time, at most `most`. 1: several would need more than a round.
inline int parts_in_cluster(const TileWork& work, int64_t asked, int most,
                            int64_t multiprocessors) {
  const auto fits = [&](int64_t parts) {
    return parts <= most && parts <= work.steps &&
           work.tiles * parts <= places_in_clusters(parts, multiprocessors);
  };
  if (asked > 0) return fits(asked) ? static_cast<int>(asked) : 1;
  int best = 1;
  for (int parts = 2; fits(parts); ++parts) {
    if (time_in_cluster(work, parts, multiprocessors) <
        time_in_cluster(work, best, multiprocessors)) {
      best = parts;
    }
  }
  return best;
}

}  // namespace diglot
