// A device that need not exist: launches are planned for it, and none starts.
#pragma once

#include <limits>

#include "diglot/launch/device.h"

namespace diglot {

class NamedDevice final : public Device {
 public:
  NamedDevice(int architecture, int multiprocessors, int shared_bytes, bool has_clusters,
              std::shared_ptr<const Tunables> tunables)
      : architecture_(architecture),
        multiprocessors_(multiprocessors),
        shared_bytes_(shared_bytes),
        has_clusters_(has_clusters),
        tunables_(std::move(tunables)) {}

  int architecture() const override { return architecture_; }
  int multiprocessors() const override { return multiprocessors_; }
  int shared_bytes() const override { return shared_bytes_; }
  bool has_clusters() const override { return has_clusters_; }
  std::shared_ptr<const Tunables> tunables() const override { return tunables_; }
  // Occupancy is unknown there, so it limits no grid.
  int resident_blocks(const Kernel&, int, std::size_t) const override {
    return std::numeric_limits<int>::max();
  }
  int resident_clusters(const Kernel&, const Launch&) const override {
    return has_clusters_ ? std::numeric_limits<int>::max() : 0;
  }
  void prepare(const Kernel&, const Launch&) const override {}

 private:
  int architecture_, multiprocessors_, shared_bytes_;
  bool has_clusters_;
  std::shared_ptr<const Tunables> tunables_;
};

}  // namespace diglot
