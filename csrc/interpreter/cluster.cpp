#include "interpreter/cluster.h"

#include <chrono>

#include "interpreter/block.h"

namespace diglot::interpreter {

// Between looks whether the launch has failed: a block that never began passes no turn.
constexpr std::chrono::milliseconds kLook(50);

Cluster::Cluster(Grid& grid, unsigned blocks, std::uint32_t number, std::uint64_t seed)
    : grid_(grid),
      random_(seed),
      blocks_(blocks, nullptr),
      has_begun_(blocks, blocks == 1),
      has_ended_(blocks, false),
      queue_(seed * 0x2545f4914f6cdd1du),
      stalled_(blocks, false) {
  if (grid.launched != nullptr) detector_ = std::make_unique<Detector>(*grid.launched, number);
}

void Cluster::take_turn(unsigned rank) {
  if (size() == 1) return;
  std::unique_lock lock(mutex_);
  while ((turn_ != rank || !is_full()) && !grid_.is_over) passed_.wait_for(lock, kLook);
  has_begun_[rank] = true;
}

void Cluster::pass_turn(unsigned rank) {
  if (size() == 1) return;
  const std::lock_guard lock(mutex_);
  if (turn_ != rank || ended_ == size()) return;
  do {
    turn_ = static_cast<unsigned>(random_.below(size()));
  } while (has_ended_[turn_]);
  if (turn_ != rank) passed_.notify_all();
}

void Cluster::enter(Block& block) {
  const std::lock_guard lock(mutex_);
  if (detector_ != nullptr) detector_->add_block(block.shared().pointer(0), block.shared().bytes());
  blocks_[block.rank()] = &block;
  ++entered_;
  if (is_full()) passed_.notify_all();
}

void Cluster::leave(unsigned rank) {
  if (size() == 1) return;
  {
    const std::lock_guard lock(mutex_);
    has_ended_[rank] = true;
    ++ended_;
  }
  pass_turn(rank);
  std::unique_lock lock(mutex_);
  passed_.notify_all();
  while (ended_ != (grid_.is_over ? entered_ : size())) passed_.wait_for(lock, kLook);
}

bool Cluster::note_stalled(unsigned rank) {
  stalled_[rank] = true;
  for (unsigned other = 0; other < size(); ++other) {
    if (!stalled_[other] && !has_ended_[other]) return false;
  }
  return true;
}

std::string Cluster::account() const {
  std::string what;
  for (unsigned rank = 0; rank < size(); ++rank) {
    if (has_ended_[rank]) continue;
    what += (what.empty() ? "" : "; ") + blocks_[rank]->account();
  }
  return what;
}

void Cluster::arrive(const Clock& clock) {
  clock_.release(clock);
  ++arrived_;
  end_phase();
}

void Cluster::end_thread(bool has_arrived) {
  if (has_arrived) --arrived_;
  end_phase();
}

void Cluster::end_phase() {
  int expected = 0;
  for (const Block* block : blocks_) expected += block->live_threads();
  if (arrived_ == 0 || arrived_ < expected) return;
  arrived_ = 0;
  ++phase_;
  clock_.end_phase();
  ++grid_.progress;
}

void Cluster::complete_rest() {
  for (const Block* block : blocks_) {
    if (block->live_threads() > 0) return;
  }
  while (!grid_.is_over && queue_.complete_one()) {
  }
}

Block* Cluster::owner(const char* begin, const char* end) const {
  for (Block* block : blocks_) {
    if (block->shared().contains(begin, end)) return block;
  }
  return nullptr;
}

}  // namespace diglot::interpreter
