// Operations that complete after the instruction that issues them: bulk copies, messages between
// blocks of a cluster, products of matrices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "interpreter/detector.h"
#include "interpreter/random.h"

namespace diglot::interpreter {

// Who accesses memory asynchronously: for messages, and for the race checks.
struct Issue {
  std::string what;   // "a bulk load of 16384 bytes"
  Site site;          // that issued it
  unsigned rank = 0;  // of the block that issued it
  int thread = 0;     // of that block
  Clock clock;        // of the thread at the issue, if races are looked for
  bool is_in_async_proxy = true;

  Issue(std::string what, const Site& site) : what(std::move(what)), site(site) {}
};

struct Operation : Issue {
  bool uses_shared = true;             // of the block that issued it, which must not end before
  bool follows_readers = false;        // it overwrites what threads may have handed back
  std::function<bool()> may_complete;  // empty: at any time
  std::function<void(const Operation&)> complete;  // its whole effect

  using Issue::Issue;
};

// Each operation completes at a random later point: soon, some turns of threads later, or as late
// as possible, when no thread can go on without it.
class AsyncQueue {
 public:
  explicit AsyncQueue(std::uint64_t seed) : random_(seed) {}

  void issue(Operation operation);
  // Passes a little time, and completes the operations that are due. Returns whether there were
  // any.
  bool step() { return next_due_ <= ++now_ && complete_due(); }
  // Completes one operation, due or not. Returns false if no operation may complete.
  bool complete_one();
  // An operation that a block has issued and that uses its shared memory, or null.
  const Operation* find(unsigned rank) const;

 private:
  struct Item {
    std::uint64_t due;
    std::unique_ptr<Operation> operation;  // apart: many items move when one is completed
  };
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  bool complete_due();
  void complete(std::size_t item);
  void find_next_due();

  Random random_;
  std::uint64_t now_ = 0;
  std::uint64_t next_due_ = kNever;
  std::vector<Item> items_;
};

}  // namespace diglot::interpreter
