// A plan is a value: a launcher's function makes it from a device's facts and its operands' dtypes,
// sizes, strides and alignment. Launches follow it with other addresses and numbers.
//
//   void scale(Planner& planner, const Operand& input, Number alpha, const Operand& out) {
//     planner.plan.variant = "flat";
//     planner.add<scale_kernel>({blocks, kThreads}, out.numel, input.as<const float>(),
//                               alpha.as<float>(), out.as<float>());
//   }
#pragma once

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "diglot/launch/arguments.h"
#include "diglot/launch/choice.h"
#include "diglot/launch/launch.h"
#include "diglot/launch/operand.h"

namespace diglot {

enum class Lifetime { kCall, kStream, kGroup };

// Memory that a launch needs besides its tensors. `zeroed` leading bytes must be zero: at each
// launch, or for a stream's scratch when it is allocated.
struct Scratch {
  int64_t bytes = 0;  // 0: none
  int64_t zeroed = 0;
  Lifetime lifetime = Lifetime::kCall;
  std::string group = {};  // the name of the process group that keeps it
};

// Of scratch that is kept by a stream, what a grid barrier takes.
constexpr int64_t kBarrierBytes = 16;
// Of scratch that is kept by a group, what the addresses of all ranks' buffers take at its start.
constexpr int64_t kGroupHeaderBytes = 512;

// One kernel.
struct Step {
  Kernel kernel;
  Launch how;
  std::function<void(const Launch&, const Arguments&)> start;
};

struct Plan {
  const char* variant = "nothing to do";  // its name: a literal
  std::vector<Step> steps;
  Scratch scratch;
  std::vector<Tunables::Entry> tuned;  // the entries that decided, each once

  void launch(const Arguments& now) const {
    for (const Step& step : steps) step.start(step.how, now);
  }
};

class Planner {
 public:
  explicit Planner(const Device& device, const LauncherName& name = {})
      : device(device), tunables_(device.tunables()), name_(name) {}

  const Device& device;
  Plan plan;

  // Takes the numbers that were measured to be best for calls like this one, if any were.
  // `layout`: a name for how the operands lie; `shape`: what the time depends on, rows first.
  void choose(std::string layout, std::vector<int64_t> shape,
              std::vector<const Operand*> operands) {
    const Chooser ask = chooser().load(std::memory_order_acquire);
    if (ask == nullptr) return;
    chosen_ =
        ask({name_, tunables_->gpu(), std::move(operands), std::move(layout), std::move(shape)});
  }

  // A number that was measured: the chosen one; or of a table the first entry whose key is not
  // less.
  int64_t tuned(Tunable tunable, int64_t key = 0) {
    Tunables::Entry entry = tunables_->find(tunable, key);
    if (chosen_ != nullptr) {
      for (const Tunables::Entry& chosen : *chosen_) {
        if (chosen.name == kTunableNames[static_cast<std::size_t>(tunable)]) {
          entry.value = chosen.value;
        }
      }
    }
    const auto is_it = [&](const Tunables::Entry& known) { return known.name == entry.name; };
    if (std::none_of(plan.tuned.begin(), plan.tuned.end(), is_it)) plan.tuned.push_back(entry);
    return entry.value;
  }

  // A launch of kKernel. Each argument is a value, or a function that makes it of `Arguments`; it
  // converts to the kernel's own type. False, and nothing is added, if the device has no room for
  // a launch that is persistent or may be skipped.
  template <auto kKernel, typename... Held>
  bool add(const Launch& how, const Held&... held) {
    return add_as<kKernel>(kKernel, how, held...);
  }

  // As many of `most` blocks, at most `per_multiprocessor` on each, as run at once.
  template <auto kKernel, typename... Held>
  void add_cooperatively(int64_t most, int per_multiprocessor, int block_threads,
                         std::size_t shared_bytes, const Held&... held) {
    add<kKernel>(cooperative_launch(device, kernel_of<kKernel>(), most, per_multiprocessor,
                                    block_threads, shared_bytes),
                 held...);
  }

  // Whether the device runs clusters of such a launch.
  template <auto kKernel>
  bool has_clusters(const Launch& how) const {
    return device.resident_clusters(kernel_of<kKernel>(), how) > 0;
  }

  // Where scratch will be, which is at least that much. The steps of a plan share it.
  Address<char> need(const Scratch& scratch) {
    plan.scratch.bytes = std::max(plan.scratch.bytes, scratch.bytes);
    plan.scratch.zeroed = std::max(plan.scratch.zeroed, scratch.zeroed);
    plan.scratch.lifetime = std::max(plan.scratch.lifetime, scratch.lifetime);
    if (!scratch.group.empty()) plan.scratch.group = scratch.group;
    return Address<char>(Address<char>::kScratch);
  }

 private:
  template <auto kKernel, typename... Parameters, typename... Held>
  bool add_as(void (*)(Parameters...), Launch how, const Held&... held) {
    const Kernel kernel = kernel_of<kKernel>();
    if (!device.fit(kernel, how)) return false;
    device.prepare(kernel, how);
    plan.steps.push_back(
        {kernel, how,
         [all = std::tuple<Held...>(held...)](const Launch& how, const Arguments& now) {
           std::apply(
               [&](const auto&... each) {
                 std::tuple<Parameters...> values(static_cast<Parameters>(resolve(each, now))...);
                 start<kKernel>(how, now.stream, values);
               },
               all);
         }});
    return true;
  }

  std::shared_ptr<const Tunables> tunables_;
  LauncherName name_;
  std::shared_ptr<const ChosenNumbers> chosen_;
};

// For how many rows a plan is made that is to run on so many.
inline int64_t planned_rows(Planner& planner, int64_t count) {
  const int64_t planned = planner.tuned(Tunable::kRowsPlannedRows);
  return planned > 0 ? planned : count;
}

}  // namespace diglot
