// The device that the interpreter models, and launches on it.
#pragma once

#include <tuple>

#include "diglot/launch/device.h"

namespace diglot {

template <auto kKernel>
Kernel kernel_of() {
  return {&typeid(KernelTag<kKernel>), nullptr};
}

class InterpretedDevice final : public Device {
 public:
  int architecture() const override { return 90; }
  int multiprocessors() const override { return interpreter::kMultiprocessors; }
  int shared_bytes() const override { return static_cast<int>(interpreter::kMaxSharedBytes); }
  bool has_clusters() const override { return true; }
  std::shared_ptr<const Tunables> tunables() const override { return tunables_of(-1); }
  int resident_blocks(const Kernel&, int block_threads, std::size_t shared_bytes) const override {
    return static_cast<int>(interpreter::resident_blocks(block_threads, shared_bytes));
  }
  int resident_clusters(const Kernel&, const Launch& how) const override {
    return how.cluster_blocks <= interpreter::kMaxClusterBlocks ? 1 : 0;
  }
  void prepare(const Kernel&, const Launch&) const override {}
};

inline const Device& current_device() {
  static const InterpretedDevice device;
  return device;
}

template <auto kKernel>
void prepare_again(const Launch&) {}

// Runs a kernel to its end. `values` are of the types of its parameters.
template <auto kKernel, typename... Parameters>
void start(const Launch& how, cudaStream_t, std::tuple<Parameters...>& values) {
  using Values = std::tuple<Parameters...>;
  const auto call = [](const void* held) {
    std::apply(kKernel, *static_cast<const Values*>(held));
  };
  interpreter::run({kernel_of<kKernel>().name(),
                    {how.grid.x, how.grid.y, how.grid.z},
                    {how.block.x, how.block.y, how.block.z},
                    how.shared_bytes,
                    how.is_cooperative,
                    how.cluster_blocks},
                   interpreter::Kernel{call, &values, sizeof(values)});
}

}  // namespace diglot
