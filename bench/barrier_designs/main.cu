// The grid barrier beside other designs of one, and beside what it competes with, a second launch.
// docs/barriers.md has the results, and says why each design was tried.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -I csrc/include -o barrier_designs
//   bench/barrier_designs/main.cu
//   ./barrier_designs > bench/results/<gpu>/barrier_designs.json
//
// It prints one JSON object, and progress to stderr. Rows of the part "barrier" have microseconds
// per barrier, or per launch of a kernel that does nothing. Rows of the part "use" have
// microseconds to reduce an array and then rewrite it by the result, in one launch with a barrier
// and in two without. Where not all blocks of a grid would run at once, its time is null. A row
// that was not verified has no time.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels.cuh"

namespace {

using namespace diglot;

constexpr uint32_t kBarriers = 2000;  // in a launch
constexpr uint32_t kLaunches = 1000;  // in a graph
constexpr uint32_t kCheckedPhases = 200;
constexpr int kRounds = 7;
constexpr int64_t kMostBytes = int64_t{1} << 30;

// In device memory, all zero before a kernel is verified or timed.
struct Shared {
  uint32_t words[kWords];
  uint32_t slots[2 * 4096];
  uint32_t mismatches;
};

using Action = std::function<void()>;

cudaStream_t stream;
cudaEvent_t begin_event, end_event;
Shared* shared;
float *x, *reference, *partials;  // of reduce, then use
double* total;
std::vector<std::string> rows;

void clear() { check(cudaMemsetAsync(shared, 0, sizeof *shared, stream), "cudaMemset"); }

template <typename T>
void allocate(T*& memory, int64_t count) {
  check(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
}

struct Grid {
  unsigned blocks, threads;
  unsigned cluster = 1;
  bool is_cooperative = false, is_programmatic = false;
};

template <typename... Parameters, typename... Arguments>
void start(const Grid& grid, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config = {grid.blocks, grid.threads, 0, stream, attributes, 0};
  if (grid.is_cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  if (grid.is_programmatic) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {grid.cluster, 1, 1};
  }
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "launching a kernel");
}

// Whether all blocks run at once.
template <typename Kernel>
bool fits(const Grid& grid, Kernel* kernel) {
  int count = 0;
  if (grid.cluster == 1) {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, grid.threads, 0),
          "asking for a kernel's occupancy");
    return grid.blocks <= static_cast<unsigned>(count * multiprocessors());
  }
  if (grid.blocks % grid.cluster != 0) return false;
  cudaLaunchAttribute cluster = {cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {grid.cluster, 1, 1};
  const cudaLaunchConfig_t config = {grid.blocks, grid.threads, 0, stream, &cluster, 1};
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "asking for clusters' occupancy");
  return grid.blocks <= count * grid.cluster;
}

// What `body` starts, as a CUDA graph.
Action as_graph(const Action& body) {
  cudaGraph_t graph;
  cudaGraphExec_t made;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  body();
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&made, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  const std::shared_ptr<CUgraphExec_st> owned(made, cudaGraphExecDestroy);
  return [owned] { check(cudaGraphLaunch(owned.get(), stream), "cudaGraphLaunch"); };
}

// What a row is about.
struct Candidate {
  std::string row;          // JSON, still open
  unsigned repeats;         // in a run
  bool is_possible = true;  // all blocks run at once
  uint32_t mismatches = 0;
  Action run = {};
  std::vector<double> us = {};

  void verify(const Action& checked_run) {
    clear();
    checked_run();
    check(cudaMemcpyAsync(&mismatches, &shared->mismatches, sizeof mismatches, cudaMemcpyDefault,
                          stream),
          "cudaMemcpy");
    check(cudaStreamSynchronize(stream), "verifying");
  }
};

Candidate candidate(const char* part, const std::string& provider, const char* timer,
                    const std::string& options, unsigned repeats) {
  return {std::string("{\"op\": \"grid_barrier_designs\", \"part\": \"") + part +
              "\", \"provider\": \"" + provider + "\", \"timer\": \"" + timer +
              "\", \"options\": {" + options + "}",
          repeats};
}

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * (sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const double high = sorted[std::min(low + 1, sorted.size() - 1)];
  return sorted[low] + (at - low) * (high - sorted[low]);
}

// Times the candidates in turns, and completes their rows.
void measure(std::vector<Candidate>& candidates) {
  for (int round = -1; round < kRounds; ++round) {  // the first warms up
    for (Candidate& c : candidates) {
      if (!c.is_possible || c.mismatches != 0) continue;
      clear();
      delay<<<1, 1, 0, stream>>>(300'000);
      check(cudaEventRecord(begin_event, stream), "cudaEventRecord");
      c.run();
      check(cudaEventRecord(end_event, stream), "cudaEventRecord");
      check(cudaEventSynchronize(end_event), "measuring");
      float ms;
      check(cudaEventElapsedTime(&ms, begin_event, end_event), "cudaEventElapsedTime");
      if (round >= 0) c.us.push_back(1e3 * ms / c.repeats);
    }
  }
  for (Candidate& c : candidates) {
    std::sort(c.us.begin(), c.us.end());
    char text[256] = "\"verified\": null, \"time_us\": null";
    if (c.mismatches != 0) {
      std::snprintf(text, sizeof text, "\"verified\": false, \"mismatches\": %u", c.mismatches);
    } else if (c.is_possible) {
      std::snprintf(text, sizeof text,
                    "\"verified\": true, \"mismatches\": 0, \"time_us\": %.4f, \"p20_us\": %.4f, "
                    "\"p80_us\": %.4f, \"samples\": %zu",
                    quantile(c.us, 0.5), quantile(c.us, 0.2), quantile(c.us, 0.8), c.us.size());
    }
    rows.push_back(c.row + ", " + text + ", \"bars\": []}");
  }
}

struct Design {
  const char* name;
  decltype(&run_phases<GridBarrier>) kernel;
  unsigned cluster = 1;
};

const Design kDesigns[] = {
    {"diglot", run_phases<GridBarrier>},
    {"premature poll", run_phases<PrematurePoll>},
    {"all threads poll", run_phases<AllThreadsPoll>},
    {"flag apart", run_phases<FlagApart>},
    {"clusters of 2 first", run_phases<ClusterFirst>, 2},
    {"clusters of 4 first", run_phases<ClusterFirst>, 4},
    {"clusters of 8 first", run_phases<ClusterFirst>, 8},
    {"grid.sync()", run_phases<CooperativeGroups>},
    {"text-book", run_phases<TextBook>},
};

void measure_barriers(unsigned blocks, unsigned threads) {
  std::fprintf(stderr, "barriers of %u blocks of %u threads\n", blocks, threads);
  const std::string options =
      "\"blocks\": " + std::to_string(blocks) + ", \"threads\": " + std::to_string(threads);
  std::vector<Candidate> candidates;
  for (const Design& design : kDesigns) {
    const Grid grid = {blocks, threads, design.cluster, /*is_cooperative=*/true};
    const auto run = [=](uint32_t phases, uint32_t* slots) {
      start(grid, design.kernel, shared->words, phases, slots, &shared->mismatches);
    };
    Candidate c = candidate("barrier", design.name, "events", options, kBarriers);
    c.is_possible = fits(grid, design.kernel);
    try {
      if (c.is_possible) c.verify([&] { run(kCheckedPhases, shared->slots); });
    } catch (const std::exception& error) {  // the query and the launch disagree
      std::fprintf(stderr, "%s: %s\n", design.name, error.what());
      check(cudaStreamSynchronize(stream), "verifying");
      static_cast<void>(cudaGetLastError());
      c.is_possible = false;
    }
    c.run = [=] { run(kBarriers, nullptr); };
    candidates.push_back(c);
  }
  for (const bool is_programmatic : {false, true}) {
    const Grid grid = {blocks, threads, 1, false, is_programmatic};
    const auto graph = [=](uint32_t count, uint32_t* slots) {
      return as_graph([=] {
        for (uint32_t phase = 0; phase < count; ++phase) {
          start(grid, is_programmatic ? run_phase<true> : run_phase<false>, phase, slots,
                &shared->mismatches);
        }
      });
    };
    Candidate c = candidate("barrier", is_programmatic ? "programmatic launches" : "launches",
                            "graph", options, kLaunches);
    c.verify(graph(kCheckedPhases, shared->slots));
    c.run = graph(kLaunches, nullptr);
    candidates.push_back(c);
  }
  measure(candidates);
}

template <bool kProgrammatic>
void use_in_two_launches(const Chunks& chunks, float* array) {
  const Grid grid = {chunks.count, kUseThreads, 1, false, kProgrammatic};
  start(grid, use_first_launch<kProgrammatic>, chunks, array, partials);
  start(grid, use_second_launch<kProgrammatic>, chunks, array, partials);
}

// A graph repeats it on one array: a small one stays in the L2 cache, as in a training step what
// the kernel before wrote does.
void measure_use(int64_t bytes) {
  std::fprintf(stderr, "use of %lld bytes\n", static_cast<long long>(bytes));
  const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
  const int64_t most = kMostBlocks * multiprocessors();
  Chunks chunks = {n, (n / kUnit + most - 1) / most * kUnit};
  chunks.count = blocks_for(n, chunks.size);
  const auto refill = [=](float* array) {
    check(cudaMemsetAsync(total, 0, sizeof *total, stream), "cudaMemset");
    start({1024, 256}, fill, n, array, total);
  };
  refill(reference);
  use_in_two_launches<false>(chunks, reference);

  std::vector<Candidate> candidates;
  const auto add = [&](const char* provider, const std::string& option, bool is_possible,
                       const Action& once) {
    const auto repeats = static_cast<unsigned>(std::clamp<int64_t>(kMostBytes / 4 / bytes, 4, 200));
    Candidate c = candidate("use", provider, "graph",
                            "\"bytes\": " + std::to_string(bytes) + option, repeats);
    c.row += ", \"bytes\": " + std::to_string(3 * bytes);
    c.is_possible = is_possible;
    if (is_possible) {
      c.verify([&] {
        refill(x);
        once();
        start({1024, 256}, compare, n, x, reference, total, &shared->mismatches);
      });
      c.run = as_graph([&] {
        for (unsigned i = 0; i < repeats; ++i) once();
      });
    }
    candidates.push_back(c);
  };
  for (unsigned per = 1; per <= kMostBlocks; per *= 2) {
    Grid grid = {std::min<unsigned>(chunks.count, per * multiprocessors()), kUseThreads};
    grid.is_cooperative = true;
    add("barrier",
        ", \"blocks per multiprocessor\": " + std::to_string(per) +
            ", \"blocks\": " + std::to_string(grid.blocks),
        fits(grid, use_in_one_launch),
        [=] { start(grid, use_in_one_launch, shared->words, chunks, x, partials); });
  }
  const std::string option = ", \"blocks\": " + std::to_string(chunks.count);
  add("launches", option, true, [=] { use_in_two_launches<false>(chunks, x); });
  add("programmatic launches", option, true, [=] { use_in_two_launches<true>(chunks, x); });
  measure(candidates);
}

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// As nvidia-smi has it; the runtime knows only which CUDA the driver is good for.
std::string driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos) {
      return word;
    }
  }
  return "unknown";
}

}  // namespace

int main() try {
  const auto begin = std::chrono::steady_clock::now();
  const unsigned count = multiprocessors();
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreate(&begin_event), "cudaEventCreate");
  check(cudaEventCreate(&end_event), "cudaEventCreate");
  allocate(shared, 1);
  allocate(x, kMostBytes / sizeof(float));
  allocate(reference, kMostBytes / sizeof(float));
  allocate(partials, kMostBlocks * count);
  allocate(total, 1);
  for (unsigned blocks : {8u, 32u, count / 2, count, 2 * count, 4 * count}) {
    for (unsigned threads : {32u, 128u, 256u, 512u, 1024u}) measure_barriers(blocks, threads);
  }
  for (int64_t bytes = 64 << 10; bytes <= kMostBytes; bytes *= 4) measure_use(bytes);

  int device, driver, runtime;
  cudaDeviceProp properties;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const std::time_t now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  const char* const commit = std::getenv("DIGLOT_COMMIT");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf(
      "{\n \"schema\": 1,\n \"op\": \"grid_barrier_designs\",\n \"gpu\": \"%s\",\n"
      " \"multiprocessors\": %u,\n \"date\": \"%s\",\n \"commit\": \"%s\",\n"
      " \"versions\": {\"cuda\": \"%s\", \"driver\": \"%s\", \"driver_cuda\": \"%s\"},\n"
      " \"seconds\": %.1f,\n \"rows\": [\n",
      properties.name, count, date, commit == nullptr ? "unknown" : commit,
      version(runtime).c_str(), driver_release().c_str(), version(driver).c_str(), seconds.count());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::printf("  %s%s\n", rows[i].c_str(), i + 1 < rows.size() ? "," : "");
  }
  std::printf(" ]\n}\n");
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
