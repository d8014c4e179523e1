// Blocks that run together and reach each other: those of a cluster, or one block alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "interpreter/async_queue.h"
#include "interpreter/interpreter.h"

namespace diglot::interpreter {

class Block;
struct Grid;

// One of its blocks runs at a time, so that what they share needs no locks, and the seed alone
// decides the order.
class Cluster {
 public:
  // `number` names it among all clusters of the launch.
  Cluster(Grid& grid, unsigned blocks, std::uint32_t number, std::uint64_t seed);

  // Waits for the turn of the block of this rank. No block runs before all have entered, so that
  // the seed alone decides what the first ones find of the others.
  void take_turn(unsigned rank);
  // Gives the turn to any block that has not ended.
  void pass_turn(unsigned rank);
  void enter(Block& block);
  // Ends a block's part, and returns when all blocks have ended theirs: until then others may look
  // at its shared memory.
  void leave(unsigned rank);

  // Notes that a block went on, so that others may.
  void note_progress() { stalled_.assign(stalled_.size(), false); }
  // Notes that a block cannot go on. Returns whether no block can.
  bool note_stalled(unsigned rank);
  // Who waits for what, in all blocks.
  std::string account() const;

  // A thread arrives at the cluster's barrier, and releases the clock. All threads that have not
  // ended must arrive.
  void arrive(const Clock& clock);
  // What threads released in the phase that ended last.
  const Clock& released() const { return clock_.last(); }
  // A thread ends, and the barrier waits for it no longer. `has_arrived`: in the current phase.
  void end_thread(bool has_arrived);
  std::uint32_t phase() const { return phase_; }

  // Once all blocks' threads have ended, completes the operations that no thread has waited for.
  void complete_rest();

  bool is_full() const { return entered_ == size(); }
  // The block of this rank; null before its first turn. It stays when it has ended.
  Block* block(unsigned rank) const {
    return rank < size() && has_begun_[rank] ? blocks_[rank] : nullptr;
  }
  unsigned size() const { return static_cast<unsigned>(blocks_.size()); }
  // The block whose shared memory holds all of [begin, end), or null.
  Block* owner(const char* begin, const char* end) const;

  AsyncQueue& queue() { return queue_; }
  // Null if races are not looked for.
  Detector* detector() { return detector_.get(); }

 private:
  // Lets the barrier's phase end, if all threads have arrived.
  void end_phase();

  Grid& grid_;
  Random random_;
  std::vector<Block*> blocks_;
  std::vector<bool> has_begun_, has_ended_;
  AsyncQueue queue_;
  std::unique_ptr<Detector> detector_;
  PhaseClock clock_;  // of the cluster's barrier
  int arrived_ = 0;
  std::uint32_t phase_ = 0;
  std::vector<bool> stalled_;  // blocks that could not go on since another did
  std::mutex mutex_;
  std::condition_variable passed_;
  unsigned turn_ = 0;                 // rank of the block that runs
  unsigned entered_ = 0, ended_ = 0;  // blocks
};

}  // namespace diglot::interpreter
