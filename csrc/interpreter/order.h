// What happens before what: vector clocks of threads and of asynchronous operations.
//
// A component is a thread, or a channel that tells of the completion of asynchronous operations.
// Its epochs grow. A clock says, by component, up to which epoch its owner has seen accesses. The
// threads of a cluster and their channels are a group; clocks know other groups too.
//
// PTX ISA, "Memory Consistency Model": an owner has seen the accesses that precede it in causality
// order. A clock's second part is proxy-preserved causality order: the generic accesses that a
// fence.proxy.async has followed.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace diglot::interpreter {

// Epochs by component. Owners that have seen the same share them.
using Counts = std::shared_ptr<const std::vector<std::uint32_t>>;

// Epochs of all components: of the owner's group, and of others in the order of their numbers.
struct Known {
  using Away = std::vector<std::pair<std::uint32_t, Counts>>;

  Counts home;
  std::shared_ptr<const Away> away;
};

// A block: the group of its cluster, and its rank there.
struct Party {
  std::uint32_t group;
  int rank;
};

// The groups that precede a launch: all but those of launches that ran when it began.
struct Past {
  std::uint32_t begin = 0;                                       // its own groups' first number
  std::vector<std::pair<std::uint32_t, std::uint32_t>> running;  // [first, last) of the others

  bool has(std::uint32_t group) const {
    if (group >= begin) return false;
    for (const auto& [first, last] : running) {
      if (group >= first && group < last) return false;
    }
    return true;
  }
};

class Clock {
 public:
  Clock() = default;

  std::uint32_t group() const { return group_; }
  // What the owner has seen of the group, without the thread's own epoch.
  const Counts& home() const { return seen_.known.home; }
  bool home_has(std::uint32_t group, int component, std::uint32_t epoch) const;
  // The thread's own epoch, if this is a thread's clock.
  std::uint32_t epoch() const { return seen_.own; }
  // The last epoch of a component whose accesses the owner has seen.
  std::uint32_t seen(std::uint32_t group, int component) const {
    return count(seen_, group, component);
  }
  // The last epoch whose generic accesses the async proxy sees too.
  std::uint32_t fenced(std::uint32_t group, int component) const {
    return count(fenced_, group, component);
  }

 private:
  friend class Order;

  // The own epoch is kept apart, so that threads that met share everything else.
  struct Part {
    Known known;
    std::uint32_t own = 0;
  };

  std::uint32_t count(const Part& part, std::uint32_t group, int component) const;
  Known whole(const Part& part) const;
  bool is_empty() const {
    return own_ < 0 && seen_.known.home == nullptr && seen_.known.away == nullptr;
  }

  std::uint32_t group_ = 0;
  int own_ = -1;  // the thread; -1 if the parts are whole
  Part seen_, fenced_;
};

// What threads release as they arrive at a barrier. Whoever waits for the end of a phase acquires
// what all have released in it.
class PhaseClock {
 public:
  void release(const Clock& clock);
  void end_phase() { last_ = std::exchange(current_, {}); }
  // Of the phase that ended last.
  const Clock& last() const { return last_; }

 private:
  Clock current_, last_;
};

// The clocks of a group: of the threads of a cluster's blocks, by rank * threads of a block +
// linear index.
class Order {
 public:
  explicit Order(int threads, std::uint32_t group = 0);

  // A component for completions of asynchronous operations. Its epochs begin with 1.
  int add_channel() { return components_++; }
  int threads() const { return static_cast<int>(clocks_.size()); }
  // Threads and channels.
  int components() const { return components_; }

  const Clock& of(int thread) const { return clocks_[thread]; }
  // What the thread has seen and done until now.
  Clock release(int thread);
  void acquire(int thread, const Clock& clock);
  // A barrier: each thread releases, then acquires what all have released.
  void meet(const std::vector<int>& threads);
  // fence.proxy.async
  void fence_proxy(int thread);

  static Clock join(const Clock& a, const Clock& b);
  // Of an operation that was issued with a clock: whoever acquires the result has seen its
  // accesses, those of the channel up to this epoch.
  Clock complete(const Clock& issued, int channel, std::uint32_t epoch) const;

 private:
  Known gather(const std::vector<int>& threads, Clock::Part Clock::* part) const;

  std::vector<Clock> clocks_;
  int components_;
};

}  // namespace diglot::interpreter
