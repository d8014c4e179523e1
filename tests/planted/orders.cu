// Plays accesses to 16 bytes of memory to the interpreter's race checks, for
// tests/test_race_checks.py: what threads do, and what asynchronous operations do.
#include <cstdint>
#include <map>
#include <sstream>
#include <string>

#include "interpreter/races.h"

namespace {

using namespace diglot::interpreter;

struct Operation {
  int channel;
  Clock issued;
  Site site;
  std::string name;
};

// Statements end with ";". THREAD is a number, others are names:
//   read THREAD; write THREAD; atomic THREAD; fence THREAD; meet THREAD THREAD ...;
//   release THREAD SIGNAL; acquire THREAD SIGNAL;
//   load THREAD OPERATION; store THREAD OPERATION;   issued by the thread: writes, reads the bytes
//   store THREAD OPERATION OTHER;   the same, in the group of another operation, and on its line
//   complete OPERATION SIGNAL
std::string play(const std::string& script, int threads) {
  static const char memory[16] = {};
  Order order(threads);
  Races races("shared memory", [](std::uint32_t, int thread, const Actor&) {
    return "thread " + std::to_string(thread);
  });
  races.add_window(memory, sizeof(memory));
  std::map<std::string, Operation> operations;
  std::map<std::string, Clock> signals;
  std::istringstream statements(script);
  int line = 0;
  for (std::string statement; std::getline(statements, statement, ';');) {
    const Site site{nullptr, {"script", ++line}};
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
    if (what == "fence") order.fence_proxy(thread);
    if (what == "release") signals[name] = Order::join(signals[name], order.release(thread));
    if (what == "acquire") order.acquire(thread, signals[name]);
    const Clock& clock = order.of(thread);
    std::string fault;
    if (what == "load" || what == "store") {
      std::string other;
      words >> other;
      Operation operation{order.add_channel(), order.release(thread), site, name};
      if (!other.empty()) {
        const Operation& of = operations.at(other);
        operation.channel = of.channel, operation.site = of.site, operation.name = of.name;
      }
      operations[name] = operation;
      const auto issue = static_cast<std::uint32_t>(line);
      const char* const called = operation.name.c_str();
      const Actor actor{operation.channel, 1, &operation.issued, true, called, 0, nullptr, issue};
      fault = races.note(actor, memory, sizeof(memory),
                         what == "load" ? Access::kWrite : Access::kRead, operation.site);
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
