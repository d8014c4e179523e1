#include "interpreter/work.h"

#include <atomic>

namespace diglot::interpreter {

namespace {

struct {
  std::atomic<std::uint64_t> loaded_bytes{0}, stored_bytes{0}, multiply_adds{0};
} counted;

}  // namespace

Work work() { return {counted.loaded_bytes, counted.stored_bytes, counted.multiply_adds}; }

void add_work(const Work& asked) {
  counted.loaded_bytes += asked.loaded_bytes;
  counted.stored_bytes += asked.stored_bytes;
  counted.multiply_adds += asked.multiply_adds;
}

}  // namespace diglot::interpreter
