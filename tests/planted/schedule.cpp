// The order of tiles, for tests/test_product_schedule.py: three numbers for each tile. Also parts
// of K: the numbers of the tile and the part, its first step and end; and how many are chosen.
#include "diglot/launch/product_splits.h"

extern "C" __attribute__((visibility("default"))) void tiles(int rows, int columns, int64_t batches,
                                                             int group, int64_t* out) {
  const diglot::TileSchedule schedule{rows, columns, batches, group};
  const diglot::SplitSchedule whole{schedule, 1, 1};
  const diglot::BlockParts parts(whole, 0, 1);
  for (int64_t index = 0; index < schedule.count(); ++index) {
    // By divisions, and by the host's multipliers. A row of -1 says that they differ.
    const diglot::Tile tile = schedule.tile(index);
    const diglot::Tile other = parts.part(static_cast<uint32_t>(index)).tile;
    const bool is_same =
        tile.row == other.row && tile.column == other.column && tile.batch == other.batch;
    *out++ = is_same ? tile.row : -1;
    *out++ = tile.column;
    *out++ = tile.batch;
  }
}

extern "C" __attribute__((visibility("default"))) void parts_of_tiles(int rows, int columns,
                                                                      int steps, int parts,
                                                                      int64_t* out) {
  const diglot::SplitSchedule schedule{{rows, columns, 1, 1}, steps, parts};
  const diglot::BlockParts all(schedule, 0, 1);
  for (uint32_t at = all.first; at < all.limit; at = all.after(at)) {
    const diglot::TilePart part = all.part(at);
    *out++ = part.number;
    *out++ = part.part;
    *out++ = part.first;
    *out++ = part.end;
  }
}

// Parts of all blocks where the last round has helpers: seven numbers for each, the last two being
// the parts beside it and its place in scratch. Returns how many there are; 0 without helpers.
extern "C" __attribute__((visibility("default"))) int64_t helped_parts(int tiles, int steps,
                                                                       int blocks, int cost,
                                                                       int64_t most, int64_t* out) {
  const auto last = diglot::HelpedRound::of(tiles, steps, blocks, cost);
  if (last.tiles == 0) return 0;
  const diglot::SplitSchedule schedule{{tiles, 1, 1, 1}, steps, 1, last};
  int64_t count = 0;
  for (int block = 0; block < blocks; ++block) {
    const diglot::BlockParts parts(schedule, static_cast<uint32_t>(block),
                                   static_cast<uint32_t>(blocks));
    for (uint32_t at = parts.first; at < parts.limit && count < most; at = parts.after(at)) {
      const diglot::TilePart part = parts.part(at);
      if (part.first == part.end) continue;
      ++count;
      const bool is_whole = schedule.is_whole(part);
      for (const int64_t number :
           {int64_t{block}, int64_t{part.tile.row}, int64_t{part.part}, int64_t{part.first},
            int64_t{part.end}, int64_t{is_whole ? 1 : schedule.parts_beside(part)},
            is_whole ? -1 : schedule.slot(part, part.part)}) {
        *out++ = number;
      }
    }
  }
  return count;
}

extern "C" __attribute__((visibility("default"))) uint32_t quotient(uint32_t of, uint32_t by) {
  return diglot::Divisor::of(by).quotient(of);
}

extern "C" __attribute__((visibility("default"))) int chosen_parts(int64_t tiles, int steps,
                                                                   double step, int64_t bytes,
                                                                   int counters, int64_t asked,
                                                                   int64_t multiprocessors) {
  const diglot::TileWork work{tiles, steps, step, 500, 1 << 22, bytes, counters};
  return diglot::parts_of(work, asked, multiprocessors);
}
