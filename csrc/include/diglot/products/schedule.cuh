// The order in which blocks compute the tiles of a product. Blocks that run at once should read the
// same rows of A and columns of B, so that L2 serves them. Twin of
// triton_ops/lib/products/schedule.py.
//
// Of 9 x 9 tiles, the first nine in row-major order read one row of tiles of A and all nine columns
// of B: 90 loads. In groups of three rows they read three rows and three columns: 54 loads.
#pragma once

#include "diglot/platform.cuh"

namespace diglot {

struct Tile {
  int row, column;
  int64_t batch;
};

// Divides numbers below 2^31 by one number, which the host knows: a product and a shift. A division
// takes longer, and small products wait for it before their first load. Warren, "Hacker's Delight",
// 10-9.
struct Divisor {
  uint32_t number, multiplier;
  int shift;

  // `by` is at least 1 and below 2^31.
  static Divisor of(uint32_t by) {
    int log = 0;  // to base 2, rounded up
    while (uint64_t{1} << log < by) ++log;
    const uint64_t power = uint64_t{1} << (31 + log);
    return {by, static_cast<uint32_t>((power + by - 1) / by), 31 + log};
  }
  DIGLOT_HOST_DEVICE uint32_t quotient(uint32_t of) const {
    return static_cast<uint32_t>(uint64_t{of} * multiplier >> shift);
  }
};

// `rows` x `columns` tiles for each matrix of a batch. A group is `group` neighbouring rows of
// tiles. Tiles go down the columns of a group, and group by group.
struct TileSchedule {
  int rows, columns;
  int64_t batches;
  int group;

  DIGLOT_HOST_DEVICE int64_t count() const { return int64_t{rows} * columns * batches; }

  // A bijection from [0, count()) to the tiles. Divisions take time, above all
  // of 64 bits, and small products need few of them.
  template <typename Index>
  DIGLOT_HOST_DEVICE Tile tile(Index index) const {
    return tile(index, [](Index dividend, Index divisor, int) { return dividend / divisor; });
  }

  // What tile() divides by.
  static constexpr int kMatrix = 0, kGroup = 1, kHeight = 2;

  // The same, where quotient(dividend, divisor, kind) divides by a number of a kind. That of
  // kHeight is the rows of this group: those of a full one, or of the last one.
  template <typename Index, typename Quotient>
  DIGLOT_HOST_DEVICE Tile tile(Index index, Quotient quotient) const {
    if (columns == 1 && batches == 1) return {static_cast<int>(index), 0, 0};
    const Index tiles = static_cast<Index>(rows) * static_cast<Index>(columns);
    const Index batch = batches == 1 ? 0 : quotient(index, tiles, kMatrix);
    const Index within = index - batch * tiles;
    const Index group_tiles = static_cast<Index>(group) * static_cast<Index>(columns);
    const Index before = rows <= group ? 0 : quotient(within, group_tiles, kGroup);
    const int first = static_cast<int>(before) * group;
    const int height = rows - first < group ? rows - first : group;  // the last may have fewer rows
    const auto place = static_cast<uint32_t>(within - before * group_tiles);
    const auto column = static_cast<uint32_t>(quotient(place, static_cast<Index>(height), kHeight));
    const int row = static_cast<int>(place - column * static_cast<uint32_t>(height));
    return {first + row, static_cast<int>(column), static_cast<int64_t>(batch)};
  }
};

// What a block computes at a time: a tile, by the steps along K from `first` to `end`.
struct TilePart {
  Tile tile;
  int64_t number;  // of the tile, among those that have parts
  int part, first, end;
};

// Scratch of products whose K is split begins with counters of arrivals. They are zero before a
// launch, and again after it. split.cuh explains them.
constexpr int kSplitCounters = 1024;
constexpr int64_t kSplitCounterBytes = kSplitCounters * 4;

// The last round of tiles has fewer than there are blocks. Blocks without one help: a tile's own
// block computes `kept` steps along K, and helpers compute the others. Triton has no such round.
//
// Those of all tiles make a line, which the helpers share out evenly. A tile's segment of it begins
// with `cost` places, since a part takes longer than its steps: its sums go through memory. The
// tiles' own blocks read the same steps at the same time, so L2 serves what they share.
struct HelpedRound {
  static constexpr int kMostHelpers = 8;  // for each tile, in the mean

  int tiles = 0;  // 0: nobody helps
  int helpers = 0, kept = 0, cost = 0;
  int segment = 1, share = 1;  // places of a tile, and of a helper
  Divisor of_segment = Divisor::of(1), of_share = Divisor::of(1);

  // Of `tiles` tiles of `steps` steps on `blocks` blocks. The line has fewer than 2^31 places, or
  // nobody helps. One block adds up all parts of a tile, so a tile has few helpers.
  static HelpedRound of(int64_t tiles, int steps, int64_t blocks, int cost) {
    HelpedRound round;
    const int64_t left = tiles % blocks, places = left * (int64_t{steps} + cost);
    const int64_t most = left * kMostHelpers, idle = blocks - left;
    const int64_t helpers = idle < most ? idle : most, working = left + helpers;
    const int64_t kept = left == 0 ? steps : (places + working - 1) / working;
    if (kept >= steps || places >= int64_t{1} << 31) return round;
    round.tiles = static_cast<int>(left);
    round.helpers = static_cast<int>(helpers);
    round.kept = static_cast<int>(kept);
    round.cost = cost;
    round.segment = steps - round.kept + cost;
    round.share = (round.line() + round.helpers - 1) / round.helpers;
    round.of_segment = Divisor::of(static_cast<uint32_t>(round.segment));
    round.of_share = Divisor::of(static_cast<uint32_t>(round.share));
    return round;
  }

  DIGLOT_HOST_DEVICE int line() const { return tiles * segment; }
  // The helper that has the first step of a tile's segment, and the one that has the last.
  DIGLOT_HOST_DEVICE int first_helper(int tile) const { return helper(tile * segment + cost); }
  DIGLOT_HOST_DEVICE int last_helper(int tile) const { return helper((tile + 1) * segment - 1); }
  DIGLOT_HOST_DEVICE int parts(int tile) const {
    return last_helper(tile) - first_helper(tile) + 2;
  }
  // Parts have numbers of their own: first those of the tiles' own blocks. On the line, each end of
  // a segment or a share begins a next one.
  DIGLOT_HOST_DEVICE int slot(int tile, int part) const {
    return part == 0 ? tile : tiles + first_helper(tile) + tile + part - 1;
  }
  int slots() const { return 2 * tiles + helpers; }
  // The tile whose segment has a place, and how many segments have places of a helper's share.
  DIGLOT_HOST_DEVICE int tile_at(int place) const {
    return static_cast<int>(of_segment.quotient(static_cast<uint32_t>(place)));
  }
  DIGLOT_HOST_DEVICE uint32_t items(int helper) const {
    const int begin = helper * share, all = line();
    const int end = begin + share < all ? begin + share : all;
    return begin < end ? static_cast<uint32_t>(tile_at(end - 1) - tile_at(begin) + 1) : 0;
  }

 private:
  DIGLOT_HOST_DEVICE int helper(int place) const {
    return static_cast<int>(of_share.quotient(static_cast<uint32_t>(place)));
  }
};

// Each tile's K is split into `parts`, which follow one another. So they end at about the same
// time, and their sums are still in L2 when they are added up. Or tiles are whole, except where the
// last round has helpers.
struct SplitSchedule {
  TileSchedule tiles;
  int steps;  // along K, at least one for each part
  int parts;
  HelpedRound last;

  // The host makes it: it knows what a kernel divides by.
  SplitSchedule(const TileSchedule& tiles, int steps, int parts, const HelpedRound& last = {})
      : tiles(tiles),
        steps(steps),
        parts(parts),
        last(last),
        quotient_(steps / parts),
        rest_(steps % parts),
        of_parts_(Divisor::of(static_cast<uint32_t>(parts))),
        of_matrix_(divisor(int64_t{tiles.rows} * tiles.columns)),
        of_group_(divisor(int64_t{full()} * tiles.columns)),
        of_full_(divisor(full())),
        of_last_(divisor(tiles.rows % full())) {}

  // Of parts, without those of helpers.
  DIGLOT_HOST_DEVICE int64_t count() const { return tiles.count() * parts; }

  // Sets all of a part but its tile, and returns the tile's number among all: a bijection from
  // [0, count()) to the parts of all tiles. There are fewer than 2^31.
  DIGLOT_HOST_DEVICE uint32_t take(uint32_t index, TilePart& part) const {
    uint32_t number = index;
    part.number = index, part.part = 0, part.first = 0, part.end = steps;
    if (parts > 1) {
      number = of_parts_.quotient(index);
      part.number = number;
      part.part = static_cast<int>(index - number * of_parts_.number);
      part.first = begin_of(part.part), part.end = begin_of(part.part + 1);
    } else if (last.tiles > 0 && index >= first_helped()) {
      part.number = index - first_helped(), part.end = last.kept;
    }
    return number;
  }

  // The same for what a helper has of its share: item by item, each in another tile. An item may
  // have no steps.
  DIGLOT_HOST_DEVICE uint32_t help(int helper, int item, TilePart& part) const {
    const int share = helper * last.share, number = last.tile_at(share) + item;
    const int segment = number * last.segment;
    const auto step_at = [&](int place) {
      const int within = place - segment - last.cost;
      return last.kept + (within > 0 ? within : 0);
    };
    const int share_end = share + last.share, segment_end = segment + last.segment;
    part.first = step_at(share > segment ? share : segment);
    part.end = step_at(share_end < segment_end ? share_end : segment_end);
    part.number = number;
    part.part = helper - last.first_helper(number) + 1;
    return first_helped() + static_cast<uint32_t>(number);
  }

  // The place of a tile, by its number among all.
  DIGLOT_HOST_DEVICE Tile tile(uint32_t number) const {
    return tiles.tile(number, [this](uint32_t dividend, uint32_t divisor, int kind) {
      if (kind == TileSchedule::kMatrix) return of_matrix_.quotient(dividend);
      if (kind == TileSchedule::kGroup) return of_group_.quotient(dividend);
      const uint32_t by_full = of_full_.quotient(dividend), by_last = of_last_.quotient(dividend);
      return divisor == of_full_.number ? by_full : by_last;
    });
  }

  DIGLOT_HOST_DEVICE bool is_whole(const TilePart& part) const {
    return part.end - part.first == steps;
  }
  // How many parts the tile of a part has, and the place of each of them in scratch.
  DIGLOT_HOST_DEVICE int parts_beside(const TilePart& part) const {
    return last.tiles == 0 ? parts : last.parts(static_cast<int>(part.number));
  }
  DIGLOT_HOST_DEVICE int64_t slot(const TilePart& beside, int part) const {
    return last.tiles == 0 ? beside.number * parts + part
                           : last.slot(static_cast<int>(beside.number), part);
  }

 private:
  int quotient_, rest_;  // of steps by parts
  Divisor of_parts_, of_matrix_, of_group_, of_full_, of_last_;

  int full() const { return tiles.rows < tiles.group ? tiles.rows : tiles.group; }
  static Divisor divisor(int64_t number) {
    return Divisor::of(number < 1 ? 1 : static_cast<uint32_t>(number));
  }

  DIGLOT_HOST_DEVICE uint32_t first_helped() const {
    return static_cast<uint32_t>(tiles.count() - last.tiles);
  }

  // steps * part / parts
  DIGLOT_HOST_DEVICE int begin_of(int part) const {
    return part * quotient_ +
           static_cast<int>(of_parts_.quotient(static_cast<uint32_t>(part * rest_)));
  }
};

// The numbers of a block's parts: those of all parts from `first` on, each `step`-th. Numbers from
// `count` on are those of the items with which it helps. A loop over them keeps no other state, so
// that the compiler sees that all threads of a warp have the same.
struct BlockParts {
  const SplitSchedule& schedule;
  uint32_t first, step, count, limit;
  int helper;

  DIGLOT_HOST_DEVICE BlockParts(const SplitSchedule& schedule, uint32_t from, uint32_t step)
      : schedule(schedule), step(step), count(static_cast<uint32_t>(schedule.count())) {
    first = from < count ? from : count;
    limit = count;
    helper = static_cast<int>(from) - schedule.last.tiles;
    if (helper >= 0 && helper < schedule.last.helpers) limit += schedule.last.items(helper);
  }

  // The number after this one; the last has `limit` after it.
  DIGLOT_HOST_DEVICE uint32_t after(uint32_t number) const {
    if (number >= count) return number + 1;
    return number + step < count ? number + step : count;
  }

  DIGLOT_HOST_DEVICE TilePart part(uint32_t number) const {
    TilePart part;
    const uint32_t tile = number < count
                              ? schedule.take(number, part)
                              : schedule.help(helper, static_cast<int>(number - count), part);
    part.tile = schedule.tile(tile);
    return part;
  }
};

}  // namespace diglot
