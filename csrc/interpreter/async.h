// Operations that complete after the instruction that issues them: bulk copies, messages between
// blocks of a cluster, products of matrices.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "interpreter/detector.h"

namespace diglot::interpreter {

// Who accesses memory asynchronously: for messages, and for the race checks.
struct Issue {
  std::string what;   // "a bulk load of 16384 bytes"
  Site site;          // that issued it
  unsigned rank = 0;  // of the block that issued it
  int thread = 0;     // of that block
  Clock clock;        // of the thread then, if races are looked for
  bool is_in_async_proxy = true;
};

struct Operation : Issue {
  bool uses_shared = true;             // of the block that issued it, which must not end before
  std::function<bool()> may_complete;  // empty: at any time
  std::function<void(const Operation&)> complete;  // its whole effect
};

// Each operation completes at a random later point: soon, some turns of threads later, or as late
// as possible, when no thread can go on without it.
class AsyncQueue {
 public:
  explicit AsyncQueue(std::uint64_t seed) : random_(seed | 1) {}

  void issue(Operation operation);
  // Passes a little time: completes what is due. Returns whether anything was.
  bool step() { return next_due_ <= ++now_ && complete_due(); }
  // Completes one operation, due or not. False if there is none that may complete.
  bool complete_one();
  // One that a block issued and that uses its shared memory, or null.
  const Operation* find(unsigned rank) const;

 private:
  struct Item {
    Operation operation;
    std::uint64_t due;
  };
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  std::uint64_t random();
  bool complete_due();
  void complete(std::size_t item);
  void find_next_due();

  std::uint64_t random_;
  std::uint64_t now_ = 0;
  std::uint64_t next_due_ = kNever;
  std::vector<Item> items_;
};

}  // namespace diglot::interpreter
