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
  static constexpr int kMatrix = 0, kGroup = 1, kHeight = 2, kDivisors = 3;

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
  int64_t number;  // of the tile
  int part, first, end;
};

// Scratch of products whose K is split begins with counters of arrivals. They are zero before a
// launch, and again after it. split.cuh explains them.
constexpr int kSplitCounters = 1024;
constexpr int64_t kSplitCounterBytes = kSplitCounters * 4;

// Each tile's K is split into `parts`, which follow one another. So they end at about the same
// time, and their sums are still in L2 when they are added up.
struct SplitSchedule {
  TileSchedule tiles;
  int steps;  // along K, at least one for each part
  int parts;

  // The host makes it: it knows what a kernel divides by.
  SplitSchedule(const TileSchedule& tiles, int steps, int parts)
      : tiles(tiles),
        steps(steps),
        parts(parts),
        quotient_(steps / parts),
        rest_(steps % parts),
        of_parts_(Divisor::of(static_cast<uint32_t>(parts))),
        of_matrix_(divisor(int64_t{tiles.rows} * tiles.columns)),
        of_group_(divisor(int64_t{full()} * tiles.columns)),
        of_full_(divisor(full())),
        of_last_(divisor(tiles.rows % full())) {}

  DIGLOT_HOST_DEVICE int64_t count() const { return tiles.count() * parts; }

  // A bijection from [0, count()) to the parts of all tiles. There are fewer than 2^31.
  DIGLOT_HOST_DEVICE TilePart part(uint32_t index) const {
    if (parts == 1) return {tile(index), index, 0, 0, steps};
    const uint32_t number = of_parts_.quotient(index);
    const int part = static_cast<int>(index - number * of_parts_.number);
    return {tile(number), number, part, begin_of(part), begin_of(part + 1)};
  }

 private:
  int quotient_, rest_;  // of steps by parts
  Divisor of_parts_, of_matrix_, of_group_, of_full_, of_last_;

  int full() const { return tiles.rows < tiles.group ? tiles.rows : tiles.group; }
  static Divisor divisor(int64_t number) {
    return Divisor::of(number < 1 ? 1 : static_cast<uint32_t>(number));
  }

  DIGLOT_HOST_DEVICE Tile tile(uint32_t index) const {
    return tiles.tile(index, [this](uint32_t dividend, uint32_t divisor, int kind) {
      if (kind == TileSchedule::kMatrix) return of_matrix_.quotient(dividend);
      if (kind == TileSchedule::kGroup) return of_group_.quotient(dividend);
      const uint32_t by_full = of_full_.quotient(dividend), by_last = of_last_.quotient(dividend);
      return divisor == of_full_.number ? by_full : by_last;
    });
  }

  // steps * part / parts
  DIGLOT_HOST_DEVICE int begin_of(int part) const {
    return part * quotient_ +
           static_cast<int>(of_parts_.quotient(static_cast<uint32_t>(part * rest_)));
  }
};

}  // namespace diglot
