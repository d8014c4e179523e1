#include "interpreter/detector.h"

#include <numeric>

#include "interpreter/async_queue.h"
#include "interpreter/shared_memory.h"

namespace diglot::interpreter {

namespace {

constexpr std::uint32_t kMostThreads = 1024;  // of a block

}  // namespace

Detector::Detector(const Launched& launched, std::uint32_t cluster)
    : launched_(launched),
      block_threads_(static_cast<int>(launched.launch->block.count())),
      order_(static_cast<int>(launched.launch->cluster_blocks) * block_threads_,
             launched.past.begin + cluster),
      races_(
          Space::kShared,
          [this](std::uint32_t, int thread, const Actor& to) {
            const int rank = thread / block_threads_;
            return "thread " + std::to_string(thread % block_threads_) + " of " +
                   (rank == to.rank ? "the block"
                                    : "block " + std::to_string(rank) + " of the cluster");
          },
          &SharedMemory::name_of) {}

void Detector::add_block(const char* shared, std::size_t bytes) {
  races_.add_window(shared, bytes);
}

std::string Detector::end_block(int rank, const char* shared) {
  if (order_.components() == block_threads_) return "";  // nobody but the block's threads
  meet_block(rank);
  const int first = rank * block_threads_;
  return races_.close_window(shared, order_.of(first), first, first + block_threads_);
}

std::string Detector::note(int thread, const void* address, std::size_t bytes, Access access,
                           Scope scope, const Site& site) {
  const Clock& clock = order_.of(thread);
  return note({thread, clock.epoch(), &clock, false, nullptr, party(thread).rank, &launched_.past},
              address, bytes, access, scope, site);
}

std::string Detector::note(const Channel& channel, const Issue& issue, const void* address,
                           std::size_t bytes, Access access) {
  const int rank = static_cast<int>(issue.rank);
  const int thread = rank * block_threads_ + issue.thread;
  // A thread's epoch is another at each issue.
  const std::uint32_t epoch = issue.clock.seen(issue.clock.group(), thread);
  const std::uint32_t number = epoch * kMostThreads + static_cast<std::uint32_t>(issue.thread);
  const Actor actor{channel.component,  channel.epoch, &issue.clock,    issue.is_in_async_proxy,
                    issue.what.c_str(), rank,          &launched_.past, number};
  return note(actor, address, bytes, access, Scope::kSystem, issue.site);
}

std::string Detector::note(const Actor& actor, const void* address, std::size_t bytes,
                           Access access, Scope scope, const Site& site) {
  std::string fault;
  if (races_.watches(address)) {
    fault = races_.note(actor, address, bytes, access, site, scope);
    if (!is_read(access)) tiles_.overwrite(address, bytes);
  } else {
    GlobalMemory& memory = GlobalMemory::instance();
    const std::lock_guard global(memory.mutex);
    fault = memory.races.note(actor, address, bytes, access, site, scope);
  }
  if (fault.empty()) return "";
  for (const auto& [other, fences] : fences_) {
    if (other / block_threads_ != actor.rank || fences.narrow == Site{}) continue;
    return fault + "; the scope of the release at " + fences.narrow.text() +
           ", or of its acquire, is too narrow to order them";
  }
  return fault;
}

void Detector::meet_block(int rank) {
  std::vector<int> threads(block_threads_);
  std::iota(threads.begin(), threads.end(), rank * block_threads_);
  order_.meet(threads);
}

void Detector::meet_lanes(int first, std::uint32_t lanes) {
  std::vector<int> threads;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (lanes >> lane & 1) threads.push_back(first + lane);
  }
  order_.meet(threads);
}

Flags& Detector::flags_of(const void* word) {
  return races_.watches(word) ? flags_ : GlobalMemory::instance().flags;
}

void Detector::acquire(int thread, const Strong& strong) {
  Flags& flags = flags_of(strong.word);
  if (strong.access == Access::kStrongWrite || !flags.has(strong.word)) return;
  Fences& fences = fences_[thread];
  if (strong.ordering == Ordering::kAcquire || strong.ordering == Ordering::kAcquireRelease) {
    order_.acquire(thread, flags.collect(strong.word, strong.scope, party(thread), &fences.narrow));
  } else {
    fences.read(flags, strong.word, strong.scope, party(thread));
  }
}

void Detector::release(int thread, const Strong& strong) {
  if (strong.access == Access::kStrongRead) return;
  Flags& flags = flags_of(strong.word);
  if (strong.access == Access::kStrongWrite) flags.overwrite(strong.word);
  if (strong.ordering == Ordering::kRelease || strong.ordering == Ordering::kAcquireRelease) {
    flags.publish(strong.word, order_.release(thread), strong.scope, party(thread), strong.site);
  } else if (const auto fences = fences_.find(thread); fences != fences_.end()) {
    fences->second.write(flags, strong.word, strong.scope, party(thread), strong.site);
  }
}

void Detector::begin_atomic(const void* word) {
  if (!races_.watches(word)) GlobalMemory::instance().mutex.lock();
}

void Detector::end_atomic(int thread, const Strong& strong) {
  acquire(thread, strong);
  release(thread, strong);
  if (!races_.watches(strong.word)) GlobalMemory::instance().mutex.unlock();
}

void Detector::note_volatile(int thread, const Strong& strong) {
  const std::lock_guard global(GlobalMemory::instance().mutex);
  if (strong.access == Access::kStrongRead) {
    fences_[thread].read_later(flags_of(strong.word), strong.word);
  } else {
    release(thread, strong);
  }
}

void Detector::fence(int thread, Scope scope) {
  const std::lock_guard global(GlobalMemory::instance().mutex);
  fences_[thread].fence(order_, thread, scope, party(thread));
}

}  // namespace diglot::interpreter
