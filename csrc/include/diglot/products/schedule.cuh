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
    if (columns == 1 && batches == 1) return {static_cast<int>(index), 0, 0};
    const Index tiles = static_cast<Index>(rows) * static_cast<Index>(columns);
    const Index batch = batches == 1 ? 0 : index / tiles, within = index - batch * tiles;
    const Index group_tiles = static_cast<Index>(group) * static_cast<Index>(columns);
    const Index before = rows <= group ? 0 : within / group_tiles;
    const int first = static_cast<int>(before) * group;
    const int height = rows - first < group ? rows - first : group;  // the last may have fewer rows
    const auto place = static_cast<uint32_t>(within - before * group_tiles);
    const uint32_t column = place / static_cast<uint32_t>(height);
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
  int steps;  // along K, at least one for each part; times parts, fewer than 2^32
  int parts;

  DIGLOT_HOST_DEVICE int64_t count() const { return tiles.count() * parts; }

  // A bijection from [0, count()) to the parts of all tiles. There are fewer than 2^32.
  DIGLOT_HOST_DEVICE TilePart part(uint32_t index) const {
    if (parts == 1) return {tiles.tile(index), index, 0, 0, steps};
    const uint32_t number = index / static_cast<uint32_t>(parts);
    const int part = static_cast<int>(index - number * static_cast<uint32_t>(parts));
    return {tiles.tile(number), number, part, begin_of(part), begin_of(part + 1)};
  }

 private:
  DIGLOT_HOST_DEVICE int begin_of(int part) const {
    const auto before = static_cast<uint32_t>(steps) * static_cast<uint32_t>(part);
    return static_cast<int>(before / static_cast<uint32_t>(parts));
  }
};

}  // namespace diglot
