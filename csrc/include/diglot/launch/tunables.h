// Tunables: measured numbers that planners use to choose among compiled kernels and their launches.
// The numbers are data by GPU, configs/tunables/*.json. This file has only their names; Python
// hands over the values (python/diglot/backends/tunables.py).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "diglot/launch/fork_safe_mutex.h"

namespace diglot {

// Each is a number or a table. A table's entries add a key to the name, such as ".64" or ".more".
#define DIGLOT_TUNABLES(X)                                                                       \
  X(kClipBlocks, "clip_grad_norm.cuda.blocks")                                                   \
  X(kElementwiseTinyElements, "elementwise.cuda.tiny_elements")                                  \
  X(kElementwiseSmallVectors, "elementwise.cuda.small_vectors")                                  \
  X(kGlobalBlocks, "global.cuda.blocks")                                                         \
  X(kGlobalFewTiles, "global.cuda.few_tiles")                                                    \
  X(kGlobalMostChunks, "global.cuda.most_chunks")                                                \
  X(kNormBackwardClusteredGroupsWithoutSums, "norm_backward.cuda.clustered_groups_without_sums") \
  X(kNormBackwardEnoughGroups, "norm_backward.cuda.enough_groups")                               \
  X(kNormBackwardGridBlocks, "norm_backward.cuda.grid_blocks")                                   \
  X(kNormBackwardGroups, "norm_backward.cuda.groups")                                            \
  X(kNormBackwardGroupsWithoutSums, "norm_backward.cuda.groups_without_sums")                    \
  X(kNormBackwardLongestHeld, "norm_backward.cuda.longest_held")                                 \
  X(kNormBackwardOneGroupRows, "norm_backward.cuda.one_group_rows")                              \
  X(kNormBackwardRowsEach, "norm_backward.cuda.rows_each")                                       \
  X(kNormBackwardSkippedShapes, "norm_backward.cuda.skipped_shapes")                             \
  X(kNormBackwardStreamingBlocks, "norm_backward.cuda.streaming_blocks")                         \
  X(kNormBackwardStages, "norm_backward.cuda.stages")                                            \
  X(kNormBackwardSumSide, "norm_backward.cuda.sum_side")                                         \
  X(kNormBackwardThreads, "norm_backward.cuda.threads")                                          \
  X(kNormForwardSkippedShapes, "norm_forward.cuda.skipped_shapes")                               \
  X(kProductsCluster, "products.cuda.cluster")                                                   \
  X(kProductsColumns, "products.cuda.columns")                                                   \
  X(kProductsGroup, "products.both.group")                                                       \
  X(kProductsRowSums, "products.both.row_sums")                                                  \
  X(kProductsSpeed, "products.cuda.speed")                                                       \
  X(kProductsSpeedOfFew, "products.cuda.speed_of_few")                                           \
  X(kProductsSplit, "products.cuda.split")                                                       \
  X(kProductsSplitInCluster, "products.cuda.split_in_cluster")                                   \
  X(kProductsSwap, "products.cuda.swap")                                                         \
  X(kProductsTurns, "products.cuda.turns")                                                       \
  X(kRowsChunkBlocks, "rows.both.chunk_blocks")                                                  \
  X(kRowsChunkElements, "rows.both.chunk_elements")                                              \
  X(kRowsElementsAside, "rows.cuda.elements_aside")                                              \
  X(kRowsFewSlots, "rows.cuda.few_slots")                                                        \
  X(kRowsManyChunks, "rows.both.many_chunks")                                                    \
  X(kRowsPlannedRows, "rows.both.planned_rows")                                                  \
  X(kRowsSkippedShapes, "rows.cuda.skipped_shapes")                                              \
  X(kRowsStripBytes, "rows.both.strip_bytes")                                                    \
  X(kRowsTallest, "rows.cuda.tallest")                                                           \
  X(kRowsTallestOfFirst, "rows.cuda.tallest_of_first")                                           \
  X(kRowsVectorsAside, "rows.cuda.vectors_aside")                                                \
  X(kSumKeptBytes, "sum.both.kept_bytes")                                                        \
  X(kSumSplitBlocks, "sum.both.split_blocks")                                                    \
  X(kSumSplitElements, "sum.both.split_elements")                                                \
  X(kRowsBlockThreads, "rows.cuda.block_threads")                                                \
  X(kNormForwardFewRows, "norm_forward.cuda.few_rows")                                           \
  X(kNormForwardBlockThreads, "norm_forward.cuda.block_threads")                                 \
  X(kNormForwardLongestInLanes, "norm_forward.cuda.longest_in_lanes")

#define DIGLOT_TUNABLE_ID(ID, NAME) ID,
#define DIGLOT_TUNABLE_NAME(ID, NAME) NAME,
enum class Tunable { DIGLOT_TUNABLES(DIGLOT_TUNABLE_ID) };
constexpr const char* kTunableNames[] = {DIGLOT_TUNABLES(DIGLOT_TUNABLE_NAME)};
constexpr std::size_t kTunableCount = std::size(kTunableNames);
#undef DIGLOT_TUNABLE_ID
#undef DIGLOT_TUNABLE_NAME

// The values of every tunable for one GPU.
class Tunables {
 public:
  struct Entry {
    std::string name;  // the full name
    int64_t value;
  };

  // `entries`: with full names. Throws std::invalid_argument if a name is unknown, or if a tunable
  // has no value.
  explicit Tunables(const std::vector<Entry>& entries, std::string gpu = {})
      : gpu_(std::move(gpu)) {
    for (const Entry& entry : entries) add(entry);
    for (std::size_t i = 0; i < kTunableCount; ++i) {
      if (tables_[i].empty()) {
        throw std::invalid_argument(std::string("the tunable ") + kTunableNames[i] +
                                    " has no value");
      }
    }
  }

  // The short name of their GPU, or nothing.
  const std::string& gpu() const { return gpu_; }

  // A number; or the first entry of a table whose key is not less than `key`.
  const Entry& find(Tunable tunable, int64_t key) const {
    const auto& table = tables_[static_cast<std::size_t>(tunable)];
    const auto found = table.lower_bound(key);
    if (found == table.end()) {
      throw std::invalid_argument(std::string("the tunable ") +
                                  kTunableNames[static_cast<std::size_t>(tunable)] +
                                  " has no entry for " + std::to_string(key));
    }
    return found->second;
  }

 private:
  static constexpr int64_t kMore = std::numeric_limits<int64_t>::max();

  void add(const Entry& entry) {
    const std::string_view name = entry.name;
    for (std::size_t i = 0; i < kTunableCount; ++i) {
      const std::string_view known = kTunableNames[i];
      if (name == known) {
        tables_[i].insert_or_assign(kMore, entry);
        return;
      }
      if (name.size() > known.size() + 1 && name.substr(0, known.size()) == known &&
          name[known.size()] == '.') {
        const std::string key(name.substr(known.size() + 1));
        tables_[i].insert_or_assign(key == "more" ? kMore : std::stoll(key), entry);
        return;
      }
    }
    throw std::invalid_argument("there is no tunable " + entry.name);
  }

  std::string gpu_;
  std::map<int64_t, Entry> tables_[kTunableCount];
};

// The tunables of each device, by its index. -1 stands for every other device, and for the
// interpreter.
class TunablesOfDevices {
 public:
  static TunablesOfDevices& instance() {
    static TunablesOfDevices& devices = *new TunablesOfDevices;  // launches outlive static objects
    return devices;
  }

  void set(int device, std::shared_ptr<const Tunables> tunables) {
    const std::lock_guard lock(fork_safe_mutex<TunablesOfDevices>());
    all_[device] = std::move(tunables);
  }
  // Throws std::runtime_error if nothing was set.
  std::shared_ptr<const Tunables> find(int device) const {
    const std::lock_guard lock(fork_safe_mutex<TunablesOfDevices>());
    auto found = all_.find(device);
    if (found == all_.end()) found = all_.find(-1);
    if (found == all_.end()) throw std::runtime_error("tunables were not set");
    return found->second;
  }

 private:
  std::map<int, std::shared_ptr<const Tunables>> all_;
};

inline std::shared_ptr<const Tunables> tunables_of(int device) {
  return TunablesOfDevices::instance().find(device);
}

}  // namespace diglot
