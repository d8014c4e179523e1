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

std::shared_ptr<Detector> Grid::detector_of(const Index3& block) {
  if (launched == nullptr) return nullptr;
  const Index3& size = launch.grid;
  const std::uint32_t number =
      ((block.z * size.y + block.y) * size.x + block.x) / launch.cluster_blocks;
  if (launch.cluster_blocks == 1) return std::make_shared<Detector>(*launched, number);
  const std::lock_guard lock(mutex);
  if (cluster.detector == nullptr || cluster.number != number) {
    cluster.detector = std::make_shared<Detector>(*launched, number);
    cluster.number = number;
  }
  return cluster.detector;
}

}  // namespace diglot::interpreter
