// A plan is a value. A launcher's function makes it from a device's facts and its operands' dtypes,
// sizes, strides and alignment. Launches then reuse it with other addresses and numbers.
//
//   void scale(Planner& planner, const Operand& input, Number alpha, const Operand& out) {
//     planner.plan.variant = "flat";
//     planner.add<scale_kernel>({blocks, kThreads}, out.numel, input.as<const float>(),
//                               alpha.as<float>(), out.as<float>());
//   }
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "diglot/launch/arguments.h"
#include "diglot/launch/choice.h"
#include "diglot/launch/launch.h"
#include "diglot/launch/operand.h"

namespace diglot {

enum class Lifetime { kCall, kStream };

// Memory that a launch needs in addition to its tensors. `zeroed` leading bytes must be zero: at
// each launch, or for a stream's scratch when it is allocated.
struct Scratch {
  int64_t bytes = 0;  // 0: none
  int64_t zeroed = 0;
  Lifetime lifetime = Lifetime::kCall;
};

// Bytes for a grid barrier at the start of scratch that a stream keeps.
constexpr int64_t kBarrierBytes = 16;

// Numbers by name, or without one.
using Numbers = std::vector<std::pair<const char*, int64_t>>;

// The numbers of a kernel's argument that set its order of summation: of an integer, itself.
// Structures that share out work have overloads.
template <typename Held>
Numbers order_of([[maybe_unused]] const Held& held) {
  if constexpr (std::is_integral_v<Held>) {
    return {{"", static_cast<int64_t>(held)}};
  } else {
    return {};
  }
}

// One kernel.
struct Step {
  Kernel kernel;
  Launch how;
  Numbers order;  // `order_of` its arguments
  std::function<void(const Launch&, const Arguments&)> start;
};

struct Plan {
  const char* variant = "nothing to do";  // its name, a literal
  std::vector<Step> steps;
  Scratch scratch;
  std::vector<Tunables::Entry> tuned;  // the tunables that decided, each once

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

  // Takes the numbers that measured best for calls like this one, if there are any. `layout` names
  // how the operands lie. `shape` has the sizes on which the time depends, rows first.
  void choose(std::string layout, std::vector<int64_t> shape,
              std::vector<const Operand*> operands) {
    const Chooser ask = chooser().load(std::memory_order_acquire);
    if (ask == nullptr) return;
    chosen_ =
        ask({name_, tunables_->gpu(), std::move(operands), std::move(layout), std::move(shape)});
  }

  // A measured number: the chosen one, or the default. In a table the first entry counts whose key
  // is not less than `key`.
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

  // Adds a launch of kKernel. Each argument is a value, or a function that makes it from
  // `Arguments`; it converts to the kernel's own type. Returns false, and adds nothing, if the
  // device has no room for a launch that is persistent or may be skipped.
  template <auto kKernel, typename... Held>
  bool add(const Launch& how, const Held&... held) {
    return add_as<kKernel>(kKernel, how, held...);
  }

  // Adds a cooperative launch: at most `most` blocks, at most `per_multiprocessor` on each SM, and
  // no more than run at once.
  template <auto kKernel, typename... Held>
  void add_cooperatively(int64_t most, int per_multiprocessor, int block_threads,
                         std::size_t shared_bytes, const Held&... held) {
    add<kKernel>(cooperative_launch(device, kernel_of<kKernel>(), most, per_multiprocessor,
                                    block_threads, shared_bytes),
                 held...);
  }

  // Whether the device runs all blocks of such a launch at once.
  template <auto kKernel>
  bool has_room(const Launch& how) const {
    const auto threads = static_cast<int>(how.threads());
    const int blocks = device.resident_blocks(kernel_of<kKernel>(), threads, how.shared_bytes);
    return static_cast<int>(how.grid.x) <= blocks;
  }

  // Whether the device can run a cluster of such a launch.
  template <auto kKernel>
  bool has_clusters(const Launch& how) const {
    return device.resident_clusters(kernel_of<kKernel>(), how) > 0;
  }

  // Asks for scratch, at least that much. All steps of a plan share it. Returns its future address.
  Address<char> need(const Scratch& scratch) {
    plan.scratch.bytes = std::max(plan.scratch.bytes, scratch.bytes);
    plan.scratch.zeroed = std::max(plan.scratch.zeroed, scratch.zeroed);
    plan.scratch.lifetime = std::max(plan.scratch.lifetime, scratch.lifetime);
    return Address<char>(Address<char>::kScratch);
  }

 private:
  template <auto kKernel, typename... Parameters, typename... Held>
  bool add_as(void (*)(Parameters...), const Launch& how, const Held&... held) {
    return add_step(
        kernel_of<kKernel>(), how, {order_of(held)...},
        [all = std::tuple<Held...>(held...)](const Launch& how, const Arguments& now) {
          std::apply(
              [&](const auto&... each) {
                std::tuple<Parameters...> values(static_cast<Parameters>(resolve(each, now))...);
                start<kKernel>(how, now.stream, values);
              },
              all);
        });
  }
  // Apart from `add_as`, which every kernel brings again.
  bool add_step(const Kernel& kernel, Launch how, std::initializer_list<Numbers> orders,
                decltype(Step::start) start) {
    if (!device.fit(kernel, how)) return false;
    device.prepare(kernel, how);
    Step step{kernel, how, {}, std::move(start)};
    for (const Numbers& numbers : orders) {
      step.order.insert(step.order.end(), numbers.begin(), numbers.end());
    }
    plan.steps.push_back(std::move(step));
    return true;
  }

  std::shared_ptr<const Tunables> tunables_;
  LauncherName name_;
  std::shared_ptr<const ChosenNumbers> chosen_;
};

// The number of rows that a plan is made for: a tunable's, or the real `count`.
inline int64_t planned_rows(Planner& planner, int64_t count) {
  const int64_t planned = planner.tuned(Tunable::kRowsPlannedRows);
  return planned > 0 ? planned : count;
}

}  // namespace diglot
