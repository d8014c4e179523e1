// The columns of a thread, in rows that are resident, for norms' derivatives.
#pragma once

#include "diglot/norm/backward.cuh"
#include "diglot/reduce/warp_block.cuh"

namespace diglot {

// Which rows a thread has, and which columns. A thread has equal columns of all its rows.
template <typename Shape, typename T>
class NormColumns {
 public:
  static constexpr int kColumns = Shape::template kColumns<T>;
  // Elements of a unit, and units of a thread.
  static constexpr int kUnit = Shape::template kUnitBytes<T> / static_cast<int>(sizeof(T));
  static constexpr int kUnits = kColumns / kUnit;

  using Rows = NormRowsOf<Shape>;

  DIGLOT_DEVICE explicit NormColumns(const Rows& rows) : rows_(rows) {
    const int thread = static_cast<int>(threadIdx.x);
    team_number_ = rows.team_of(thread);
    const int member = thread - team_number_ * rows.team;
    // The first element among the block's columns.
    const int first = member / kWarpLanes * (kColumns * kWarpLanes) + member % kWarpLanes * kUnit;
    column_ = static_cast<int>(first_column()) + first;  // a row that is held is short enough
    count_ = share() - first;
  }

  // The first row of the block's first team, this thread's team in the block, and the step to a
  // team's next row.
  DIGLOT_DEVICE int64_t first_row() const { return rows_.group(); }
  DIGLOT_DEVICE int team_number() const { return team_number_; }
  DIGLOT_DEVICE int step() const { return rows_.groups * rows_.teams; }

 protected:
  // Computed at each use, not kept in registers.
  // The block's columns.
  DIGLOT_DEVICE int64_t first_column() const { return rows_.block() * rows_.share; }
  DIGLOT_DEVICE int share() const {
    const int64_t rest = rows_.n - first_column();
    return static_cast<int>(rest < rows_.share ? rest : rows_.share);
  }
  // Lanes of a warp that share a row, and this thread's number among them.
  DIGLOT_DEVICE int side() const {
    return Shape::kHasLanes && rows_.team < kWarpLanes ? rows_.team : kWarpLanes;
  }
  DIGLOT_DEVICE int lane() const { return static_cast<int>(threadIdx.x) & (side() - 1); }
  // The distance from the thread's first element to another.
  DIGLOT_DEVICE int element(int u, int i = 0) const { return u * side() * kUnit + i; }
  DIGLOT_DEVICE bool exists(int u, int i = 0) const { return element(u, i) < count_; }

  const Rows& rows_;
  int column_;  // the thread's first
  int count_;   // elements of the block's columns from there on
  int team_number_;
};

}  // namespace diglot
