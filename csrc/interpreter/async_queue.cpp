#include "interpreter/async_queue.h"

#include <algorithm>
#include <utility>

namespace diglot::interpreter {

void AsyncQueue::issue(Operation operation) {
  std::uint64_t due = kNever;
  switch (random_.below(3)) {
    case 0: due = now_ + 1; break;
    case 1: due = now_ + 1 + random_.below(256); break;
    default: break;
  }
  items_.push_back({due, std::make_unique<Operation>(std::move(operation))});
  next_due_ = std::min(next_due_, due);
}

void AsyncQueue::complete(std::size_t item) {
  const std::unique_ptr<const Operation> operation = std::move(items_[item].operation);
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(item));
  operation->complete(*operation);
}

void AsyncQueue::find_next_due() {
  next_due_ = kNever;
  for (const Item& item : items_) next_due_ = std::min(next_due_, item.due);
}

bool AsyncQueue::complete_due() {
  bool has_completed = false;
  for (std::size_t i = 0; i < items_.size();) {
    Item& item = items_[i];
    if (item.due > now_) {
      ++i;
    } else if (item.operation->may_complete && !item.operation->may_complete()) {
      item.due = now_ + 1;
      ++i;
    } else {
      complete(i);
      has_completed = true;
      i = 0;  // it may have issued others, and let others complete
    }
  }
  find_next_due();
  return has_completed;
}

bool AsyncQueue::complete_one() {
  const std::size_t count = items_.size();
  if (count == 0) return false;
  const std::size_t first = random_.below(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t candidate = (first + i) % count;
    const Operation& operation = *items_[candidate].operation;
    if (operation.may_complete && !operation.may_complete()) continue;
    complete(candidate);
    find_next_due();
    return true;
  }
  return false;
}

const Operation* AsyncQueue::find(unsigned rank) const {
  for (const Item& item : items_) {
    if (item.operation->rank == rank && item.operation->uses_shared) return item.operation.get();
  }
  return nullptr;
}

}  // namespace diglot::interpreter
