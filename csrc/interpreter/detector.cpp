#include "interpreter/detector.h"

#include <numeric>

namespace diglot::interpreter {

Detector::Detector(int blocks, int block_threads, std::uint32_t group)
    : block_threads_(block_threads),
      order_(blocks * block_threads, group),
      races_("shared memory", [block_threads](std::uint32_t, int thread, const Actor& to) {
        const int rank = thread / block_threads;
        const bool is_same = rank == to.component / block_threads;
        return "thread " + std::to_string(thread % block_threads) + " of " +
               (is_same ? "the block" : "block " + std::to_string(rank) + " of the cluster");
      }) {}

void Detector::add_block(const char* shared, std::size_t bytes) {
  races_.add_window(shared, bytes);
}

std::string Detector::end_block(int rank, const char* shared) {
  if (order_.threads() == block_threads_) return "";
  meet_block(rank);
  const int first = rank * block_threads_;
  return races_.close_window(shared, order_.of(first), first, first + block_threads_);
}

std::string Detector::note(int thread, const void* address, std::size_t bytes, Access access,
                           const Site& site) {
  const Clock& clock = order_.of(thread);
  return races_.note({thread, clock.epoch(), &clock}, address, bytes, access, site);
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

}  // namespace diglot::interpreter
