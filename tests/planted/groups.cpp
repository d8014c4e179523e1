// The tiles of groups, for tests/test_product_groups.py: for each tile its row, its column, its
// group, and the group's range. Returns how many there are.
#include "diglot/products/groups.cuh"

extern "C" __attribute__((visibility("default"))) int64_t
tiles_of_groups(const int32_t* offsets, int groups, int64_t size, int tile, int rows, int columns,
                int height, int align, int step, int64_t* out) {
  const diglot::GroupSchedule schedule{groups, size, tile, rows, columns, height, align};
  int64_t count = 0;
  // As `step` blocks do, each from its own first tile on.
  for (int block = 0; block < step; ++block) {
    diglot::Group<int64_t> group;
    for (int64_t index = block; schedule.find(offsets, index, group); index += step) {
      const diglot::Tile found = schedule.tile_of(group, index);
      int64_t* const to = out + index * 5;
      to[0] = found.row, to[1] = found.column, to[2] = found.batch;
      to[3] = group.begin, to[4] = group.end;
      ++count;
    }
  }
  return count <= schedule.most() ? count : -1;
}
