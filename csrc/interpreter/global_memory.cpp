#include "interpreter/global_memory.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "diglot/launch/fork_safe_mutex.h"
#include "interpreter/block.h"

namespace diglot::interpreter {

GlobalMemory::GlobalMemory()
    : mutex(fork_safe_mutex<GlobalMemory>()),
      races(
          Space::kGlobal,
          [this](std::uint32_t group, int thread, const Actor& to) {
            return name(group, thread, to);
          },
          [](std::size_t offset) {
            return "byte " + std::to_string(offset) + " of the watched memory";
          }) {}

GlobalMemory& GlobalMemory::instance() {
  static GlobalMemory memory;
  return memory;
}

void GlobalMemory::watch(const Range& range) {
  const std::lock_guard lock(mutex);
  watched_.push_back(range);
  races.add_window(range.begin, static_cast<std::size_t>(range.end - range.begin));
}

void GlobalMemory::end_watch(const Range& range) {
  const std::lock_guard lock(mutex);
  const auto is_it = [&](const Range& other) { return other.begin == range.begin; };
  watched_.erase(std::find_if(watched_.begin(), watched_.end(), is_it));
  races.remove_window(range.begin);
  forget();
}

Launched GlobalMemory::begin(const Launch& launch) {
  const std::lock_guard lock(mutex);
  Launched result{&launch, {}, 0, watched_};
  for (const Described& other : launches_) {
    if (other.is_running) result.past.running.emplace_back(other.begin, other.begin + other.groups);
  }
  const std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const std::uint64_t groups = blocks / launch.cluster_blocks;
  if (groups > UINT32_MAX - next_group_) {
    throw std::invalid_argument("launching " + launch.kernel +
                                ": race checks tell 4294967295 clusters apart, of all launches "
                                "since one that has not ended or since memory is watched");
  }
  result.past.begin = next_group_;
  result.groups = static_cast<std::uint32_t>(groups);
  next_group_ += result.groups;
  launches_.push_back({result.past.begin, result.groups, launch.kernel, launch.grid,
                       launch.cluster_blocks, static_cast<unsigned>(launch.block.count()), true});
  return result;
}

void GlobalMemory::end(const Launched& launched) {
  const std::lock_guard lock(mutex);
  for (Described& other : launches_) {
    if (other.begin == launched.past.begin) other.is_running = false;
  }
  forget();
}

void GlobalMemory::forget() {
  const auto is_over = [](const Described& other) { return !other.is_running; };
  if (std::all_of(launches_.begin(), launches_.end(), is_over)) flags.clear();
  if (!watched_.empty()) return;  // messages name launches that have ended
  launches_.erase(std::remove_if(launches_.begin(), launches_.end(), is_over), launches_.end());
  if (launches_.empty()) next_group_ = 1;
}

std::string GlobalMemory::name(std::uint32_t group, int thread, const Actor& to) const {
  const auto launch_of = [&](std::uint32_t its) {
    return std::find_if(launches_.begin(), launches_.end(), [&](const Described& launch) {
      return its - launch.begin < launch.groups;
    });
  };
  const auto launch = launch_of(group);
  if (launch == launches_.end()) return "a thread of an earlier launch";
  const auto threads = static_cast<int>(launch->block_threads);
  const unsigned block = (group - launch->begin) * launch->cluster_blocks + thread / threads;
  return "thread " + std::to_string(thread % threads) + " of block " +
         text_of(index_of(block, launch->grid)) +
         (launch == launch_of(to.clock->group()) ? "" : " of " + launch->kernel + " at once");
}

Watch::Watch(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
  for (const Range& range : ranges_) GlobalMemory::instance().watch(range);
}

Watch::~Watch() {
  for (const Range& range : ranges_) GlobalMemory::instance().end_watch(range);
}

}  // namespace diglot::interpreter
