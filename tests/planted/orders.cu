// Plays accesses to 16 bytes of memory to the interpreter's race checks, for
// tests/test_race_checks.py: what threads do, and what asynchronous operations do. And launches.
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "interpreter/global_memory.h"
#include "interpreter/races.h"

namespace {

using namespace diglot::interpreter;

struct Operation {
  int channel, line;
  Clock issued;
};

// Statements end with ";". THREAD is a number, others are names:
//   read THREAD; write THREAD; atomic THREAD; fence THREAD; meet THREAD THREAD ...;
//   release THREAD SIGNAL; acquire THREAD SIGNAL;
//   load THREAD OPERATION; store THREAD OPERATION;   issued by the thread: writes, reads the bytes;
//                                                    the same name tells of both, as one barrier
//   store THREAD OPERATION OTHER;                    the same, in the group of another operation
//   complete OPERATION SIGNAL
std::string play(const std::string& script, int threads) {
  static const char memory[16] = {};
  Order order(threads);
  Races races(
      Space::kShared,
      [](std::uint32_t, int thread, const Actor&) { return "thread " + std::to_string(thread); },
      [](std::size_t offset) { return "byte " + std::to_string(offset); });
  races.add_window(memory, sizeof(memory));
  std::map<std::string, Operation> operations;
  std::map<std::string, Clock> signals;
  std::istringstream statements(script);
  int line = 0;
  for (std::string statement; std::getline(statements, statement, ';');) {
    const Site site(diglot::Place{"script", ++line});
    std::istringstream words(statement);
    std::string what, name;
    int thread = 0;
    words >> what;
    if (what == "complete") {
      std::string signal;
      words >> name >> signal;
      const Operation& operation = operations.at(name);
      signals[signal] =
          Order::join(signals[signal], order.complete(operation.issued, operation.channel, 1));
      continue;
    }
    if (what == "meet") {
      std::vector<int> all;
      while (words >> thread) all.push_back(thread);
      order.meet(all);
      continue;
    }
    words >> thread >> name;
    if (what == "fence") order.fence_proxy(thread, Space::kShared);
    if (what == "release") signals[name] = Order::join(signals[name], order.release(thread));
    if (what == "acquire") order.acquire(thread, signals[name]);
    const Clock& clock = order.of(thread);
    std::string fault;
    if (what == "load" || what == "store") {
      std::string other;
      words >> other;
      const bool is_new = operations.count(name) == 0;
      const int channel = other.empty() ? 0 : operations.at(other).channel;
      Operation& operation = operations[name];
      if (is_new) {
        operation.channel = other.empty() ? order.add_channel() : channel;
        operation.line = line;
      }
      operation.issued = order.release(thread);
      const Site issue(diglot::Place{"script", operation.line});
      const std::string& whose = other.empty() ? name : other;
      const auto number = static_cast<std::uint32_t>(line);
      const Actor actor{operation.channel, 1, &operation.issued, true,
                        whose.c_str(),     0, nullptr,           number};
      fault = races.note(actor, memory, sizeof(memory),
                         what == "load" ? Access::kWrite : Access::kRead, issue);
    } else if (what == "read" || what == "write" || what == "atomic") {
      const Access access = what == "read"    ? Access::kRead
                            : what == "write" ? Access::kWrite
                                              : Access::kAtomic;
      // All but the first byte, so that bytes have different pasts.
      fault = races.note({thread, clock.epoch(), &clock}, memory + 1, 15, access, site);
    }
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* play(const char* script, int threads,
                                                                   int finds_generic_reads) {
  static thread_local std::string answer;
  options().finds_generic_reads_before_async_writes = finds_generic_reads != 0;
  answer = play(std::string(script), threads);
  return answer.c_str();
}

// Begins and ends a number of launches, one after the other. The answer is the fault, or the
// number of the last one's first cluster.
extern "C" __attribute__((visibility("default"))) const char* begin_launches(int launches,
                                                                             unsigned blocks,
                                                                             int are_watched) {
  static thread_local std::string answer;
  static const char watched[16] = {};
  std::vector<Range> ranges;
  if (are_watched != 0) ranges.push_back({watched, watched + sizeof(watched)});
  const Watch scope(std::move(ranges));
  Launch launch;
  launch.grid = {blocks, 1, 1};
  try {
    for (int i = 0; i < launches; ++i) {
      const Launched launched = GlobalMemory::instance().begin(launch);
      answer = std::to_string(launched.past.begin);
      GlobalMemory::instance().end(launched);
    }
  } catch (const std::exception& error) {
    answer = error.what();
  }
  return answer.c_str();
}
