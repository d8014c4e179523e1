// The order of tiles, for tests/test_product_schedule.py: three numbers for each tile.
#include "diglot/products/schedule.cuh"

extern "C" __attribute__((visibility("default"))) void tiles(int rows, int columns, int64_t batches,
                                                             int group, int64_t* out) {
  const diglot::TileSchedule schedule{rows, columns, batches, group};
  for (int64_t index = 0; index < schedule.count(); ++index) {
    const diglot::Tile tile = schedule.tile(index);
    *out++ = tile.row;
    *out++ = tile.column;
    *out++ = tile.batch;
  }
}
