#include "interpreter/block.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace diglot::interpreter {

namespace {

thread_local Block* running_block = nullptr;

std::string text_of(const Index3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

Index3 index_of(unsigned linear, const Index3& size) {
  return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y};
}

}  // namespace

Block* current_block() {
  return running_block != nullptr && running_block->is_running() ? running_block : nullptr;
}

Block::Block(Grid& grid, Index3 index, std::uint64_t seed)
    : grid_(grid),
      index_(index),
      random_((seed * 0x9e3779b97f4a7c15u) | 1),
      threads_(grid.launch.block.x * grid.launch.block.y * grid.launch.block.z),
      exchanges_((threads_.size() + kWarp - 1) / kWarp),
      detector_(grid.detector_of(index)) {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i].linear = static_cast<int>(i);
    threads_[i].index = index_of(static_cast<unsigned>(i), grid.launch.block);
  }
  clear_shared(grid.launch.shared_bytes);
  if (grid.launch.cluster_blocks > 1) grid.cluster.shared[rank()] = shared_window().begin;
  if (detector_ != nullptr) {
    const Range shared = shared_window();
    detector_->add_block(shared.begin, static_cast<std::size_t>(shared.end - shared.begin));
  }
  // run() has counted blocks that wait for each other.
  busy_ = grid.launch.is_cooperative || grid.launch.cluster_blocks > 1;
  set_busy(true);
}

Block::~Block() {
  running_block = nullptr;
  set_busy(false);
  for (Thread& thread : threads_) {
    if (thread.stack != nullptr) give_back(std::move(thread.stack));
  }
}

void Block::set_busy(bool busy) {
  if (busy != busy_) grid_.busy += busy ? 1 : -1;
  busy_ = busy;
}

void Block::begin_thread() {
  Block& block = *running_block;
  begin_context(block.scheduler_);
  block.grid_.kernel.call(block.grid_.kernel.parameters);
  block.thread_->state = State::kDone;
  block.suspend();
}

void Block::resume(Thread& thread) {
  if (thread.state == State::kNew) {
    thread.stack = take_stack();
    thread.context = make_context(*thread.stack, &Block::begin_thread);
    thread.state = State::kReady;
  }
  thread.turns = 0;
  thread_ = &thread;
  switch_context(scheduler_, thread.context);
  thread_ = nullptr;
  if (thread.state != State::kDone) return;
  give_back(std::move(thread.stack));
  ++done_;
  // Who has ended is waited for no longer.
  for (std::size_t i = exchanges_[thread.warp()].size(); i > 0; --i) {
    release_exchange(thread.warp(), i - 1);
  }
}

void Block::suspend() { switch_context(thread_->context, scheduler_); }

void Block::shuffle(std::vector<int>& order) {
  for (std::size_t i = order.size(); i > 1; --i) {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;  // xorshift64
    std::swap(order[i - 1], order[random_ % i]);
  }
}

void Block::run() {
  running_block = this;
  std::vector<int> order;
  std::uint64_t seen = grid_.progress;
  auto since = begin_;
  const std::chrono::milliseconds patience(options().patience_ms);
  const int count = static_cast<int>(threads_.size());
  while (done_ < count && !grid_.is_over) {
    order.clear();
    for (const Thread& thread : threads_) {
      if (thread.state == State::kNew || thread.state == State::kReady) {
        order.push_back(thread.linear);
      }
    }
    if (order.empty()) {
      if (release_barrier()) continue;
      grid_.fail(account_of_threads());
      break;
    }
    shuffle(order);
    bool is_idle = true;
    for (const int linear : order) {
      resume(threads_[linear]);
      if (grid_.is_over) break;
      is_idle &= threads_[linear].is_idle();
    }
    if (is_late()) {
      grid_.fail("after " + std::to_string(options().seconds) + " seconds " + account_of_threads());
    }
    set_busy(!is_idle);
    if (!is_idle) continue;
    const auto now = Clock::now();
    // Every thread that could run has done nothing but look. If those of all other blocks that run
    // do the same, nobody changes what they look at.
    if (grid_.busy > 0 || grid_.progress != seen) {
      seen = grid_.progress;
      since = now;
    } else if (now - since > patience) {
      grid_.fail(account_of_threads());
    }
    sched_yield();
  }
  running_block = nullptr;
  if (detector_ == nullptr || done_ < count) return;
  const std::string fault = detector_->end_block(static_cast<int>(rank()), shared_window().begin);
  if (!fault.empty()) grid_.fail("block " + text_of(index_) + ": " + fault);
}

bool Block::is_late() const {
  return Clock::now() - begin_ > std::chrono::seconds(options().seconds);
}

void Block::check_time(const Site& site) {
  while (grid_.is_over) suspend();
  if (!is_late()) return;
  fail("it has not ended after " + std::to_string(options().seconds) + " seconds", site);
}

bool Block::release_barrier() {
  if (waiting_ == 0 || waiting_ + done_ < static_cast<int>(threads_.size()) || done_ > 0) {
    return false;
  }
  for (Thread& thread : threads_) {
    thread.votes = votes_;
    thread.state = State::kReady;
  }
  waiting_ = 0;
  if (detector_ != nullptr) detector_->meet_block(static_cast<int>(rank()));
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
         {nullptr, place});
  }
  if (waiting_++ == 0) votes_ = {0, true, false};
  votes_.count += predicate;
  votes_.all &= predicate;
  votes_.any |= predicate;
  Thread& thread = *thread_;
  thread.state = State::kAtBarrier;
  thread.waits_in = what;
  thread.site = {nullptr, place};
  suspend();
  return thread.votes;
}

void Block::cluster_barrier(Place place) {
  Cluster& cluster = grid_.cluster;
  barrier(false, "the cluster's barrier", place);
  if (thread_->linear == 0 && grid_.launch.cluster_blocks > 1) {
    const unsigned generation = cluster.generation;
    if (++cluster.arrived == grid_.launch.cluster_blocks) {
      cluster.arrived = 0;
      if (detector_ != nullptr) detector_->meet_cluster();
      ++cluster.generation;
      ++grid_.progress;
    } else {
      while (cluster.generation == generation) poll({nullptr, place});
    }
  }
  barrier(false, "the cluster's barrier", place);
}

Lanes Block::exchange(std::uint32_t mask, std::uint64_t value, const char* what, Place place) {
  Thread& thread = *thread_;
  // Lanes may meet in it from different places: all others must agree on one.
  const bool is_syncwarp = std::strcmp(what, "__syncwarp()") == 0;
  const std::uint32_t lane_bit = 1u << thread.lane();
  if ((mask & lane_bit) == 0) {
    fail(std::string(what) + " with a mask that lacks the calling lane " +
             std::to_string(thread.lane()),
         {nullptr, place});
  }
  const int first = thread.warp() * kWarp;
  const int lanes = std::min<int>(kWarp, static_cast<int>(threads_.size()) - first);
  if (lanes < kWarp && mask >> lanes != 0 && mask != 0xffffffffu) {
    fail(std::string(what) + " with a mask that names lanes beyond the block's threads",
         {nullptr, place});
  }

  std::vector<Exchange>& pending = exchanges_[thread.warp()];
  Exchange* exchange = nullptr;
  for (Exchange& candidate : pending) {
    if (candidate.lanes.mask == mask) exchange = &candidate;
  }
  if (exchange == nullptr) {
    pending.emplace_back();
    exchange = &pending.back();
    exchange->lanes.mask = mask;
    exchange->what = what;
    exchange->is_syncwarp = is_syncwarp;
    exchange->place = place;
  } else if (!(exchange->place == place) && !is_syncwarp) {
    fail(std::string(what) + " while other lanes of its mask wait in " + exchange->what + " at " +
             Site{nullptr, exchange->place}.text(),
         {nullptr, place});
  }
  exchange->lanes.values[thread.lane()] = value;
  exchange->arrived |= lane_bit;
  thread.state = State::kAtWarp;
  thread.waits_in = what;
  thread.site = {nullptr, place};
  release_exchange(thread.warp(), exchange - pending.data());
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
  if (detector_ != nullptr && exchange.is_syncwarp) {
    detector_->meet_lanes(component(threads_[first]), exchange.arrived);
  }
}

std::uint32_t Block::active_mask() const {
  const int first = thread_->warp() * kWarp;
  std::uint32_t mask = 0;
  for (int lane = 0; lane < kWarp && first + lane < static_cast<int>(threads_.size()); ++lane) {
    mask |= static_cast<std::uint32_t>(threads_[first + lane].state != State::kDone) << lane;
  }
  return mask;
}

void Block::note(const void* address, std::size_t bytes, Access access, Scope scope,
                 const Site& site) {
  if (detector_ == nullptr) return;
  const std::string fault = detector_->note(component(), address, bytes, access, scope, site);
  if (!fault.empty()) fail(fault, site);
}

void Block::poll(const Site& site) {
  thread_->looks = std::max(thread_->looks, Thread::kIdle);
  look(site);
}

void Block::look(const Site& site) {
  constexpr int kTurns = 256;
  Thread& thread = *thread_;
  const void* const frame = __builtin_frame_address(0);
  if (thread.deepest == nullptr || frame < thread.deepest) {  // a recursion is no wait
    thread.deepest = frame;
    thread.looks = 0;
  }
  ++thread.turns;
  if (thread.looks < Thread::kIdle) ++thread.looks;
  // Who only looks lets others run, to change what it looks at; who does more, now and then.
  if (!thread.is_idle() && thread.turns < kTurns) return;
  thread.waits_in = "a loop that waits for memory";
  thread.site = site;
  suspend();
}

std::string Block::name_of(const Thread& thread) const {
  return "block " + text_of(index_) + ", thread " + text_of(thread.index);
}

std::string Block::account_of_threads() const {
  // Who waits where, one example for each place, and who has ended.
  struct Group {
    const Thread* example;
    int count;
  };
  std::vector<Group> groups;
  const Thread* ended = nullptr;
  for (const Thread& thread : threads_) {
    if (thread.state == State::kDone) {
      if (ended == nullptr) ended = &thread;
      continue;
    }
    bool found = false;
    for (Group& group : groups) {
      if (group.example->site == thread.site) {
        ++group.count;
        found = true;
      }
    }
    if (!found) groups.push_back({&thread, 1});
  }
  std::string what = "block " + text_of(index_) + " cannot go on: ";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Thread& example = *groups[i].example;
    what += (i == 0 ? "" : "; ") + std::to_string(groups[i].count) + " of its " +
            std::to_string(threads_.size()) + " threads, thread " + text_of(example.index) +
            " for one, wait in " + example.waits_in + " at " + example.site.text();
  }
  if (ended != nullptr) {
    what +=
        "; " + std::to_string(done_) + " have ended, thread " + text_of(ended->index) + " for one";
  }
  return what;
}

void Block::fail(const std::string& what, const Site& site) {
  grid_.fail(name_of(*thread_) + ": " + what + ", at " + site.text());
  // The stack is left as it is: kernels own nothing that needs an end.
  for (;;) suspend();
}

}  // namespace diglot::interpreter
