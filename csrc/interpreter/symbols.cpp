#include "interpreter/symbols.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "diglot/launch/fork_safe_mutex.h"

namespace diglot::interpreter {

namespace {

// Of the lines of calls that the compiler has inlined, innermost first: the first that is not in a
// header that stands in for CUDA's.
std::string line_of_kernel(const std::string& lines) {
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = lines.find('\n', begin);
    const std::string line = lines.substr(begin, end - begin);
    const bool is_last = end == std::string::npos || end + 1 >= lines.size();
    if (is_last || line.find("/interpreter/include/") == std::string::npos) return line;
    begin = end + 1;
  }
}

// What addr2line says of an offset in a library; "" where there is no addr2line or no answer.
std::string ask(const char* library, std::uintptr_t offset) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  char address[32];
  std::snprintf(address, sizeof(address), "0x%zx", static_cast<std::size_t>(offset));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  char* const arguments[] = {const_cast<char*>("addr2line"), const_cast<char*>("-ie"),
                             const_cast<char*>(library), address, nullptr};
  // No fork(), which would wait for mutexes that this thread holds (fork_safe_mutex.h).
  pid_t child = 0;
  const bool is_started =
      posix_spawnp(&child, "addr2line", &actions, nullptr, arguments, environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string answer;
  char buffer[512];
  for (ssize_t got; is_started && (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  if (is_started) waitpid(child, nullptr, 0);
  answer = line_of_kernel(answer);
  answer = answer.substr(0, answer.find(" (discriminator"));
  return answer.rfind("??", 0) == 0 ? "" : answer;
}

}  // namespace

std::string source_line(const void* return_address) {
  Dl_info info{};
  if (dladdr(return_address, &info) == 0 || info.dli_fname == nullptr) return "an unknown place";
  // The call lies before the address that it returns to.
  const auto offset = reinterpret_cast<std::uintptr_t>(return_address) -
                      reinterpret_cast<std::uintptr_t>(info.dli_fbase) - 1;
  static std::unordered_map<const void*, std::string> known;
  const std::lock_guard lock(fork_safe_mutex<decltype(known)>());
  const auto [entry, is_new] = known.try_emplace(return_address);
  if (is_new) entry->second = ask(info.dli_fname, offset);
  const std::string& line = entry->second;
  if (!line.empty()) return line;
  char text[64];
  std::snprintf(text, sizeof(text), "offset 0x%zx (addr2line would name the line)",
                static_cast<std::size_t>(offset));
  return text;
}

}  // namespace diglot::interpreter
