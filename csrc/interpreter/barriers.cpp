// Where threads of a block, of a warp or of a cluster wait for each other.
#include <algorithm>
#include <cstring>

#include "interpreter/block.h"

namespace diglot::interpreter {

bool Block::release_barrier() {
  if (waiting_ == 0 || waiting_ + done_ < static_cast<int>(threads_.size()) || done_ > 0) {
    return false;
  }
  for (Thread& thread : threads_) {
    thread.votes = votes_;
    thread.state = State::kReady;
  }
  waiting_ = 0;
  if (Detector* const detector = cluster_->detector()) {
    detector->meet_block(static_cast<int>(rank()));
  }
  return true;
}

Votes Block::barrier(bool predicate, const char* what, Place place) {
  for (const Thread& other : threads_) {
    if (waiting_ == 0) break;
    if (other.state != State::kAtBarrier) continue;
    if (other.site.place == place) break;
    fail(std::string(what) + " while thread " + text_of(other.index) + " waits in " +
             other.waits_in + " at " + other.site.text() +
             ": all threads of a block must reach the same barrier",
         place);
  }
  if (waiting_++ == 0) votes_ = {0, true, false};
  votes_.count += predicate;
  votes_.all &= predicate;
  votes_.any |= predicate;
  begin_wait(State::kAtBarrier, what, place);
  suspend();
  return thread_->votes;
}

void Block::begin_wait(State state, const char* what, Place place) {
  thread_->state = state;
  thread_->waits_in = what;
  thread_->site = place;
}

// A mask must have the calling lane, and no lanes that the warp lacks.
void Block::check_mask(std::uint32_t mask, const char* what, Place place) {
  const int lane = thread_->lane();
  if ((mask >> lane & 1) == 0) {
    fail(std::string(what) + " with a mask that lacks the calling lane " + std::to_string(lane),
         place);
  }
  const int lanes = std::min(kWarp, threads() - thread_->warp() * kWarp);
  if (lanes < kWarp && mask >> lanes != 0 && mask != 0xffffffffu) {
    fail(std::string(what) + " with a mask that names lanes beyond the block's threads", place);
  }
}

Lanes Block::exchange(std::uint32_t mask, std::uint64_t value, const char* what, Place place) {
  check_mask(mask, what, place);
  // Lanes may meet in it from different places. In all others they must agree on one.
  const bool is_syncwarp = std::strcmp(what, "__syncwarp()") == 0;
  Thread& thread = *thread_;
  std::vector<Exchange>& pending = exchanges_[thread.warp()];
  auto exchange = std::find_if(pending.begin(), pending.end(), [mask](const Exchange& candidate) {
    return candidate.lanes.mask == mask;
  });
  if (exchange == pending.end()) {
    exchange = pending.emplace(pending.end());
    exchange->lanes.mask = mask;
    exchange->what = what;
    exchange->is_syncwarp = is_syncwarp;
    exchange->place = place;
  } else if (!(exchange->place == place) && !is_syncwarp) {
    fail(std::string(what) + " while other lanes of its mask wait in " + exchange->what + " at " +
             Site(exchange->place).text(),
         place);
  }
  exchange->lanes.values[thread.lane()] = value;
  exchange->arrived |= 1u << thread.lane();
  begin_wait(State::kAtWarp, what, place);
  release_exchange(thread.warp(), exchange - pending.begin());
  if (thread.state == State::kAtWarp) suspend();
  return thread.lanes;
}

// Lets the lanes of an exchange go, if all of its mask have arrived or ended.
void Block::release_exchange(std::size_t warp, std::size_t index) {
  std::vector<Exchange>& pending = exchanges_[warp];
  const Exchange exchange = pending[index];
  const std::size_t first = warp * kWarp;
  std::uint32_t expected = 0;
  for (int lane = 0; lane < kWarp && first + lane < threads_.size(); ++lane) {
    const bool is_there = threads_[first + lane].state != State::kDone;
    expected |= static_cast<std::uint32_t>(is_there) << lane;
  }
  if (exchange.arrived != (exchange.lanes.mask & expected)) return;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((exchange.arrived >> lane & 1) == 0) continue;
    Thread& thread = threads_[first + lane];
    thread.lanes = exchange.lanes;
    thread.lanes.mask = exchange.arrived;
    thread.lanes.lane = lane;
    thread.state = State::kReady;
  }
  pending[index] = pending.back();
  pending.pop_back();
  // Shuffles and votes order no memory accesses.
  Detector* const detector = cluster_->detector();
  if (detector != nullptr && exchange.is_syncwarp) {
    detector->meet_lanes(component(threads_[first]), exchange.arrived);
  }
}

void Block::arrive_at_cluster(bool releases, Place place) {
  Thread& thread = *thread_;
  if (thread.is_at_cluster_barrier) {
    fail("a second arrival at the cluster's barrier, without a wait since the first", place);
  }
  thread.is_at_cluster_barrier = true;
  thread.cluster_phase = cluster_->phase();
  cluster_->arrive(releases ? release() : Clock());
}

void Block::wait_for_cluster(Place place) {
  Thread& thread = *thread_;
  if (!thread.is_at_cluster_barrier) {
    fail("a wait for the cluster's barrier, at which the thread has not arrived", place);
  }
  const std::uint32_t phase = thread.cluster_phase;
  wait_until([this, phase] { return cluster_->phase() != phase; }, "the cluster's barrier", {},
             place);
  thread.is_at_cluster_barrier = false;
  acquire(cluster_->released());
}

void Block::wait_until(std::function<bool()> is_over, const char* what,
                       std::function<std::string()> account, Place place) {
  if (is_over()) return;
  thread_->wait = {std::move(is_over), std::move(account)};
  begin_wait(State::kWaiting, what, place);
  suspend();
}

}  // namespace diglot::interpreter
