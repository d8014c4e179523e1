#include "interpreter/block.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace diglot::interpreter {

namespace {

thread_local Block* running_block = nullptr;

}  // namespace

Index3 index_of(std::uint64_t linear, const Index3& size) {
  return {static_cast<unsigned>(linear % size.x), static_cast<unsigned>(linear / size.x % size.y),
          static_cast<unsigned>(linear / size.x / size.y)};
}

std::string text_of(const Index3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

Block* current_block() {
  return running_block != nullptr && running_block->is_running() ? running_block : nullptr;
}

void fail(const std::string& what, Place place) { current_block()->fail(what, place); }

void check_fault(const std::string& fault, Place place) {
  if (!fault.empty()) fail(fault, place);
}

Block::Block(Grid& grid, std::shared_ptr<Cluster> cluster, Index3 index, std::uint64_t seed)
    : grid_(grid),
      cluster_(std::move(cluster)),
      index_(index),
      random_(seed * 0x9e3779b97f4a7c15u),
      threads_(grid.launch.block.count()),
      exchanges_((threads_.size() + kWarp - 1) / kWarp),
      shared_(grid.launch.shared_bytes),
      registers_(static_cast<int>(threads_.size())),
      warpgroups_(threads_.size() / kWarpgroup),
      seen_progress_(grid.progress) {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i].linear = static_cast<int>(i);
    threads_[i].index = index_of(i, grid.launch.block);
  }
  // run() has counted blocks that wait for each other.
  busy_ = grid.launch.is_cooperative || grid.launch.cluster_blocks > 1;
  set_busy(true);
  cluster_->enter(*this);
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
  try {
    block.grid_.kernel.call(block.grid_.kernel.parameters);
  } catch (const std::exception& error) {  // nobody catches it below this frame
    block.grid_.fail(block.name_of(*block.thread_) + ": " + error.what());
  }
  if (block.thread_->accumulators != nullptr) {
    const std::string fault = block.thread_->accumulators->fault_at_end();
    if (!fault.empty()) block.grid_.fail(block.name_of(*block.thread_) + ": " + fault);
  }
  block.acquire(block.thread_->readers);  // whom it has waited for: its end comes later
  block.thread_->state = State::kDone;
  block.suspend();
}

void Block::resume(Thread& thread) {
  if (thread.state == State::kNew) {
    thread.stack = take_stack();
    thread.stack_begin = thread.stack->begin();
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
  cluster_->note_progress();
  cluster_->end_thread(thread.is_at_cluster_barrier && thread.cluster_phase == cluster_->phase());
  // Who has ended is waited for no longer.
  for (std::size_t i = exchanges_[thread.warp()].size(); i > 0; --i) {
    release_exchange(thread.warp(), i - 1);
  }
}

void Block::suspend() { switch_context(thread_->context, scheduler_); }

void Block::shuffle(std::vector<int>& order) {
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random() % i]);
  }
}

void Block::run() {
  running_block = this;
  try {
    while (live_threads() > 0 && !grid_.is_over) {
      cluster_->take_turn(rank());
      if (!grid_.is_over) judge(run_round());
      if (live_threads() == 0 && !grid_.is_over) end();
      cluster_->pass_turn(rank());
    }
  } catch (const std::exception& error) {  // out of memory, say; the cluster must learn of the end
    grid_.fail(error.what());
  }
  set_busy(false);
  cluster_->leave(rank());
  running_block = nullptr;
}

// Lets each thread run that can, until it waits or looks at memory.
Block::Round Block::run_round() {
  order_.clear();
  for (Thread& thread : threads_) {
    if (thread.state == State::kWaiting && thread.wait.is_over()) thread.state = State::kReady;
    if (thread.state == State::kNew || thread.state == State::kReady) {
      order_.push_back(thread.linear);
    }
  }
  if (order_.empty()) return release_barrier() ? Round::kWorked : Round::kStuck;
  shuffle(order_);
  bool is_idle = true;
  for (const int linear : order_) {
    if (cluster_->queue().step()) note_completion();
    resume(threads_[linear]);
    if (grid_.is_over) break;
    is_idle &= threads_[linear].is_idle();
  }
  if (is_late()) {
    grid_.fail("after " + std::to_string(options().seconds) + " seconds " + account());
  }
  return is_idle ? Round::kLooked : Round::kWorked;
}

void Block::note_completion() {
  ++grid_.progress;
  cluster_->note_progress();
}

// Decides after a round whether threads wait for what never comes.
void Block::judge(Round round) {
  set_busy(round == Round::kWorked);
  if (round == Round::kWorked) return cluster_->note_progress();
  // What has been issued may be all that is waited for.
  if (cluster_->queue().complete_one()) return note_completion();
  if (round == Round::kStuck) {
    if (cluster_->note_stalled(rank())) grid_.fail(cluster_->account());
    return;
  }
  // Every thread that could run has done nothing but look. If those of all other blocks that run
  // do the same, nobody changes what they look at.
  const auto now = Time::now();
  if (grid_.busy > 0 || grid_.progress != seen_progress_) {
    seen_progress_ = grid_.progress;
    seen_at_ = now;
  } else if (now - seen_at_ > std::chrono::milliseconds(options().patience_ms)) {
    grid_.fail(account());
  }
  sched_yield();
}

// Checks what the block leaves behind.
void Block::end() {
  if (const Operation* const operation = cluster_->queue().find(rank())) {
    return grid_.fail("block " + text_of(index_) + " ends before " + operation->what +
                      " is complete, issued at " + operation->site.text());
  }
  std::string fault = mbarriers_.fault_at_end();
  for (const Warpgroup& group : warpgroups_) {
    if (fault.empty()) fault = group.aligned.fault_at_end();
  }
  if (Detector* const detector = cluster_->detector(); detector != nullptr && fault.empty()) {
    fault = detector->end_block(static_cast<int>(rank()), shared_.pointer(0));
  }
  if (fault.empty()) return cluster_->complete_rest();
  const char* const early = cluster_->size() > 1 ? ", which leaves its cluster early: " : ": ";
  grid_.fail("block " + text_of(index_) + early + fault);
}

bool Block::is_late() const {
  return Time::now() - begin_ > std::chrono::seconds(options().seconds);
}

void Block::check_time(const Site& site) {
  while (grid_.is_over) suspend();
  if (!is_late()) return;
  fail("it has not ended after " + std::to_string(options().seconds) + " seconds", site);
}

std::uint32_t Block::active_mask() const {
  const int first = thread_->warp() * kWarp;
  std::uint32_t mask = 0;
  for (int lane = 0; lane < kWarp && first + lane < static_cast<int>(threads_.size()); ++lane) {
    mask |= static_cast<std::uint32_t>(threads_[first + lane].state != State::kDone) << lane;
  }
  return mask;
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
  // A thread that only looks lets others run after each look, so that they change what it looks at.
  // Any other thread does so now and then.
  if (!thread.is_idle() && thread.turns < kTurns) return;
  thread.waits_in = "a loop that waits for memory";
  thread.site = site;
  suspend();
}

std::string Block::name_of(const Thread& thread) const {
  return "block " + text_of(index_) + ", thread " + text_of(thread.index);
}

std::string Block::account() const {
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
    const auto known = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.example->site == thread.site;
    });
    if (known == groups.end()) {
      groups.push_back({&thread, 1});
    } else {
      ++known->count;
    }
  }
  std::string what = "block " + text_of(index_) + " cannot go on: ";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Thread& example = *groups[i].example;
    what += (i == 0 ? "" : "; ") + std::to_string(groups[i].count) + " of its " +
            std::to_string(threads_.size()) + " threads, thread " + text_of(example.index) +
            " for one, wait in " + example.waits_in + " at " + example.site.text();
    if (example.state == State::kWaiting && example.wait.account) {
      what += " (" + example.wait.account() + ")";
    }
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

void Block::fail_operation(const std::string& what, const Issue& issue) {
  const Block& issuer = *cluster_->block(issue.rank);
  grid_.fail(issue.what + " of " + issuer.name_of(issuer.threads_[issue.thread]) + ": " + what +
             ", issued at " + issue.site.text());
}

void Block::sign(Issue& issue) {
  issue.rank = rank();
  issue.thread = thread_->linear;
  issue.clock = release();
}

int Block::add_channel() {
  Detector* const detector = cluster_->detector();
  return detector == nullptr ? -1 : detector->order().add_channel();
}

void Block::issue(Operation operation) {
  sign(operation);
  if (operation.follows_readers) {
    operation.clock = Order::join(operation.clock, thread_->readers);
  }
  cluster_->queue().issue(std::move(operation));
}

Clock Block::completed(const Issue& issue, const Channel& channel) {
  Detector* const detector = cluster_->detector();
  if (detector == nullptr) return {};
  return detector->order().complete(issue.clock, channel.component, channel.epoch);
}

Clock Block::release() {
  Detector* const detector = cluster_->detector();
  return detector == nullptr ? Clock() : detector->order().release(component(*thread_));
}

void Block::acquire(const Channel& channel) {
  Detector* const detector = cluster_->detector();
  if (detector == nullptr || channel.component < 0) return;  // nothing was issued
  Order& order = detector->order();
  const int thread = component(*thread_);
  order.acquire(thread, order.complete(order.of(thread), channel.component, channel.epoch));
}

void Block::acquire(const Clock& clock) {
  if (Detector* const detector = cluster_->detector()) {
    detector->order().acquire(component(*thread_), clock);
  }
}

}  // namespace diglot::interpreter
