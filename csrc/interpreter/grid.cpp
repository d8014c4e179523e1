// What all blocks of a launch share.
#include <algorithm>
#include <iterator>
#include <utility>

#include "interpreter/block.h"

namespace diglot::interpreter {

Grid::Grid(const Launch& launch, const Kernel& kernel, const std::vector<Range>* arguments)
    : launch(launch), kernel(kernel), arguments(arguments) {
  if (!options().finds_races) return;
  if (options().watches_arguments && arguments != nullptr) {
    std::vector<Range> written;
    std::copy_if(arguments->begin(), arguments->end(), std::back_inserter(written),
                 [](const Range& range) { return range.is_writable; });
    watch = std::make_unique<const Watch>(std::move(written));
  }
  launched = std::make_unique<Launched>(GlobalMemory::instance().begin(launch));
}

Grid::~Grid() {
  if (launched != nullptr) GlobalMemory::instance().end(*launched);
}

void Grid::fail(const std::string& what) {
  const std::lock_guard lock(mutex);
  if (failure.empty()) failure = launch.kernel + ": " + what;
  is_over = true;
}

std::shared_ptr<Cluster> Grid::join_cluster(std::uint32_t number, std::uint64_t seed) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<Cluster> joined = cluster.lock();
  if (joined == nullptr || joined->is_full()) {
    joined = std::make_shared<Cluster>(*this, launch.cluster_blocks, number, seed);
    cluster = joined;
  }
  return joined;
}

}  // namespace diglot::interpreter
