// Runs planted kernels by name; library.py calls it through ctypes. A file of kernels includes it
// and lists them as `kernels`. No PyTorch.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "diglot/launch/launch.h"
#if defined(DIGLOT_INTERPRETER)
#include "interpreter/fiber.h"
#endif

namespace planted {

using Start = void (*)(const diglot::Launch& how, const float* in, float* out);
struct Entry {
  const char* name;
  Start start;
};

template <auto kKernel>
constexpr Start start = [](const diglot::Launch& how, const float* in, float* out) {
  diglot::launch<kKernel>(how, nullptr, in, out);
};

#define PLANTED(KERNEL) {#KERNEL, start<KERNEL>}

extern const std::vector<Entry> kernels;

}  // namespace planted

// How a kernel is launched. The class in library.py has the same fields.
struct Options {
  unsigned blocks, threads;
  unsigned long long shared_bytes;
  int is_cooperative;
  unsigned long long seed;
  int finds_races;
  unsigned patience_ms, seconds;
  unsigned cluster_blocks;
};

namespace {

diglot::Launch launch_of(const Options& options) {
  return {options.blocks, options.threads, options.shared_bytes, options.is_cooperative != 0,
          options.cluster_blocks};
}

// Runs a kernel on arrays of the host; `out` has an element for each block.
#if defined(DIGLOT_INTERPRETER)

void run_entry(const planted::Entry& entry, const Options& options, const float* in,
               std::int64_t elements, float* out) {
  using diglot::interpreter::Range;
  diglot::interpreter::options() = {options.seed, options.finds_races != 0, 0, options.patience_ms,
                                    options.seconds};
  const auto range = [](const float* begin, std::int64_t count, bool is_writable) {
    return Range{reinterpret_cast<const char*>(begin), reinterpret_cast<const char*>(begin + count),
                 is_writable};
  };
  const diglot::interpreter::Arguments scope(
      {range(in, elements, false), range(out, options.blocks, true)});
  entry.start(launch_of(options), in, out);
}

#else

void run_entry(const planted::Entry& entry, const Options& options, const float* in,
               std::int64_t elements, float* out) {
  using diglot::check;
  const std::size_t in_bytes = elements * sizeof(float), out_bytes = options.blocks * sizeof(float);
  float *device_in = nullptr, *device_out = nullptr;
  check(cudaMalloc(&device_in, in_bytes), "allocating");
  check(cudaMalloc(&device_out, out_bytes), "allocating");
  check(cudaMemcpy(device_in, in, in_bytes, cudaMemcpyHostToDevice), "copying");
  check(cudaMemcpy(device_out, out, out_bytes, cudaMemcpyHostToDevice), "copying");
  entry.start(launch_of(options), device_in, device_out);
  check(cudaDeviceSynchronize(), "running");
  check(cudaMemcpy(out, device_out, out_bytes, cudaMemcpyDeviceToHost), "copying");
}

#endif

}  // namespace

#if defined(DIGLOT_INTERPRETER)
// A process has a limit of memory maps, and each library has stacks of its own.
extern "C" __attribute__((visibility("default"))) void free_stacks() {
  diglot::interpreter::free_stacks();
}
#endif

// Runs a kernel on `elements` values and one result for each block. Returns what went wrong, or "".
extern "C" __attribute__((visibility("default"))) const char* run(
    const char* name, const Options* options, const float* in, std::int64_t elements, float* out) {
  static thread_local std::string answer;
  // Host code of a kernel's file may use the same inline functions as the interpreter.
  std::vector<int> tried;
  answer = "there is no such kernel";
  for (const planted::Entry& entry : planted::kernels) {
    tried.push_back(static_cast<int>(tried.size()));
    if (std::strcmp(entry.name, name) != 0) continue;
    answer.clear();
    try {
      run_entry(entry, *options, in, elements, out);
    } catch (const std::exception& error) {
      answer = error.what();
    }
  }
  return answer.c_str();
}
