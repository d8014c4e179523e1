// The columns of a thread, in rows that are resident, for norms' derivatives.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// Which rows a thread has, and which columns. A thread has equal columns of all its rows.
template <typename Shape, typename T>
class NormColumns {
 public:
  static constexpr int kElements = Shape::template kElements<T>;
  static constexpr int kAccesses = Shape::kAccesses;
  static constexpr int kColumns = Shape::template kColumns<T>;

  DIGLOT_DEVICE explicit NormColumns(const NormRows& rows) : rows_(rows) {
    const int thread = static_cast<int>(threadIdx.x);
    team_number_ = thread / rows.team;
    const int member = thread - team_number_ * rows.team;
    // Steps between the thread's elements, and its first element among the block's columns.
    int step, first;
    if constexpr (Shape::kIsWide) {
      step = kWarpLanes * kElements;
      first = (member / kWarpLanes * (kAccesses * kWarpLanes) + member % kWarpLanes) * kElements;
    } else {
      step = rows.team;
      first = member;
    }
    if constexpr (Shape::kIsPeeled) skipped_ = rows.order.skipped(group());
    column_ = first_column() + first - skipped_;
    step_ = static_cast<uint32_t>(step * sizeof(T));
    count_ = (share() - first + step - 1) / step;
    if constexpr (Shape::kIsPeeled) {
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const int64_t column = column_ + element(a, 0);
        if (exists(a, 0) && (column < 0 || column + kElements > rows.n)) partial_ |= 1u << a;
      }
    }
  }

  // The first row of the block's first team, this thread's team in the block, and the step to a
  // team's next row.
  DIGLOT_DEVICE int64_t first_row() const { return group(); }
  DIGLOT_DEVICE int team_number() const { return team_number_; }
  DIGLOT_DEVICE int step() const { return rows_.groups * teams(); }

 protected:
  // Computed at each use, not kept in registers.
  DIGLOT_DEVICE int group() const { return static_cast<int>(blockIdx.x) / rows_.blocks; }
  DIGLOT_DEVICE int teams() const { return static_cast<int>(blockDim.x) / rows_.team; }
  // The block's columns.
  DIGLOT_DEVICE int64_t first_column() const {
    return static_cast<int>(blockIdx.x) % rows_.blocks * rows_.share;
  }
  DIGLOT_DEVICE int share() const {
    const int64_t rest = rows_.n + skipped_ - first_column();
    return static_cast<int>(rest < rows_.share ? rest : rows_.share);
  }
  DIGLOT_DEVICE bool exists(int a, int i) const {
    return (Shape::kIsWide ? a : a * kElements + i) < count_;
  }
  // Whether all elements of an access are in the row, and whether one element is.
  DIGLOT_DEVICE bool is_whole(int a) const { return !Shape::kIsPeeled || (partial_ >> a & 1) == 0; }
  DIGLOT_DEVICE bool is_in_row(int a, int i) const {
    if constexpr (!Shape::kIsPeeled) return exists(a, i);
    const int64_t column = column_ + element(a, i);
    return exists(a, i) && column >= 0 && column < rows_.n;
  }
  // Whether an access reaches outside the arrays: before their first row, or behind their last.
  DIGLOT_DEVICE bool is_beyond(int64_t row, int a) const {
    if (is_whole(a)) return false;
    const int64_t column = column_ + element(a, 0);
    return (row == 0 && column < 0) || (row == rows_.count - 1 && column + kElements > rows_.n);
  }
  // A partial access, with zeros for elements outside the row.
  DIGLOT_DEVICE uint4 without_neighbours(uint4 bits, int a) const {
    Vector<T, kElements> access = unpack<T>(bits);
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (!is_in_row(a, i)) access[i] = T{};
    }
    return pack(access);
  }
  // The distance from the thread's first element to another.
  DIGLOT_DEVICE int element(int a, int i) const {
    return Shape::kIsWide ? a * kWarpLanes * kElements + i : (a * kElements + i) * rows_.team;
  }

  // The address of an access, or of element i of it where elements are accessed one by one.
  template <typename U>
  DIGLOT_DEVICE U* access_address(U* part, int a, int i = 0) const {
    if constexpr (Shape::kIsWide) return part + element(a, i);
    using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
    return reinterpret_cast<U*>(reinterpret_cast<Byte*>(part) + (a * kElements + i) * step_);
  }

  const NormRows& rows_;
  int64_t column_;        // the thread's first
  uint32_t step_;         // bytes to the thread's next element, where it accesses single elements
  int count_;             // accesses, or elements
  int team_number_;       // in the block
  int skipped_ = 0;       // elements of the first access before a peeled row
  unsigned partial_ = 0;  // bit a: access a has elements outside the row
};

}  // namespace diglot
