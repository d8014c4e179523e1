#include "interpreter/copies.h"

#include <cstring>

namespace diglot::interpreter {

void AsyncCopies::copy(const Copy& copy) {
  touch(copy.from, copy.bytes, Access::kRead, copy.place);
  touch(copy.to, copy.bytes, Access::kWrite, copy.place);
  std::memcpy(copy.to, copy.from, copy.bytes);
}

void AsyncCopies::issue(void* to, const void* from, std::size_t bytes, bool is_late, Place place) {
  const Copy issued{to, from, bytes, place};
  if (is_late) {
    open_.push_back(issued);
  } else {
    copy(issued);
  }
}

void AsyncCopies::wait(std::size_t newer) {
  while (groups_.size() > newer) {
    for (const Copy& waiting : groups_.front()) copy(waiting);
    groups_.erase(groups_.begin());
  }
}

void AsyncCopies::wait_for_all() {
  commit();
  wait(0);
}

}  // namespace diglot::interpreter
