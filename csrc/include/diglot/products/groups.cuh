// The tiles of a product of groups. Offsets in the GPU's memory say where groups end, so blocks
// find their tiles themselves. Twin of triton_ops/lib/products/groups.py.
#pragma once

#include "diglot/products/schedule.cuh"

namespace diglot {

// A group, its range of the divided dimension, and the numbers of its tiles, [first, last).
template <typename Index>
struct Group {
  int number = -1;
  Index begin = 0, end = 0;
  Index first = 0, last = 0;

  DIGLOT_HOST_DEVICE Index size() const { return end - begin; }
};

// Groups divide a dimension of `size`: C's rows, or K. Group g ends at offsets[g]. An offset below
// an earlier one makes an empty group, and one past the end is the end, so that no offset leads out
// of bounds. Rows past the last offset are one more group, of zeros.
//
// Tiles go group by group. Within a group they are in the order of `TileSchedule`.
struct GroupSchedule {
  int groups;
  int64_t size;
  int tile;     // rows of a tile, where groups divide rows; 0 where they divide K
  int rows;     // of tiles, where groups divide K: then each group has all of them
  int columns;  // of tiles
  int height;   // rows of tiles that make a group of `TileSchedule`

  // TMA loads boxes at multiples of 16 bytes of contiguous elements. So a range begins at a
  // multiple of `align`, if need be before its group.
  int align = 1;

  // Where a group's range begins.
  template <typename Index>
  DIGLOT_HOST_DEVICE Index first_of(const Group<Index>& group) const {
    return group.begin / align * align;
  }

  // Moves `group` on to the group of tile `index`. False if there is no such tile. Blocks ask for
  // ascending tiles, so they read each offset once.
  template <typename Index>
  DIGLOT_HOST_DEVICE bool find(const int32_t* offsets, Index index, Group<Index>& group) const {
    const int last = tile == 0 ? groups - 1 : groups;
    const auto most = static_cast<Index>(size);
    // Behind the end of the dimension all groups are empty.
    while (index >= group.last && group.number < last && (tile == 0 || group.end < most)) {
      ++group.number;
      group.begin = group.end;
      const Index end = group.number < groups ? offsets[group.number] : most;
      group.end = end < group.begin ? group.begin : end < most ? end : most;
      group.first = group.last;
      group.last += static_cast<Index>(rows_of(group)) * columns;
    }
    return index < group.last;
  }

  // The tile, of a group that `find` found.
  template <typename Index>
  DIGLOT_HOST_DEVICE Tile tile_of(const Group<Index>& group, Index index) const {
    const TileSchedule schedule{rows_of(group), columns, 1, height};
    const Tile within = schedule.tile(index - group.first);
    return {within.row, within.column, group.number};
  }

  // No offsets make more tiles.
  DIGLOT_HOST_DEVICE int64_t most() const {
    const int more = align == 1 ? 1 : 2;  // tiles of a group, where others would have none
    if (tile == 0) return int64_t{groups} * rows * columns;
    const int64_t many = size / tile + int64_t{groups + 1} * more;
    return (many < size ? many : size) * columns;  // a row of tiles has a row of C
  }

 private:
  template <typename Index>
  DIGLOT_HOST_DEVICE int rows_of(const Group<Index>& group) const {
    if (tile == 0) return rows;
    return group.size() == 0 ? 0
                             : static_cast<int>((group.end - first_of(group) + tile - 1) / tile);
  }
};

}  // namespace diglot
