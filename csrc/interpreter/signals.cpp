#include "interpreter/signals.h"

#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <mutex>

#include "diglot/launch/fork_safe_mutex.h"
#include "interpreter/block.h"

namespace diglot::interpreter {

namespace {

constexpr std::size_t kSignalStackBytes = 64 * 1024;
constexpr int kSignals[] = {SIGSEGV, SIGFPE};
struct sigaction previous_actions[2];

// Where it happened, and what.
thread_local const void* code = nullptr;
thread_local enum { kOverflow, kMemory, kDivision } kind;

[[noreturn]] void report() {
  const std::string what[] = {
      "its stack of " + std::to_string(Stack::kBytes) + " bytes overflows",
      "memory is used that is not there, or that may only be read",
      "an integer division by zero, or of the least integer by -1",
  };
  current_block()->fail(what[kind], Site(code));
}

// Whether it is this library's: elsewhere, locks may be held.
bool is_own(const void* address) {
#if defined(__SANITIZE_ADDRESS__)
  return false;  // the sanitizer says more
#else
  Dl_info library{}, other{};
  return dladdr(reinterpret_cast<const void*>(&report), &library) != 0 &&
         dladdr(address, &other) != 0 && library.dli_fbase == other.dli_fbase;
#endif
}

void on_signal(int number, siginfo_t* info, void* context) {
  Block* const block = current_block();
  auto* const registers = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
  auto& counter = registers->uc_mcontext.gregs[REG_RIP];
  auto& stack = registers->uc_mcontext.gregs[REG_RSP];
  constexpr int kReturnBytes = 8;  // as after a call
#else
  auto& counter = registers->uc_mcontext.pc;
  auto& stack = registers->uc_mcontext.sp;
  constexpr int kReturnBytes = 0;
#endif
  const char* const instruction = reinterpret_cast<const char*>(counter);
  const bool is_overflow =
      number == SIGSEGV && block != nullptr && block->thread().stack->is_overflow(info->si_addr);
  if (is_overflow || (block != nullptr && is_own(instruction))) {
    kind = is_overflow ? kOverflow : number == SIGSEGV ? kMemory : kDivision;
    // The thread goes on at the top of its stack, which nobody needs any more, in report().
    code = instruction + 1;  // as a return address is
    stack = reinterpret_cast<std::uintptr_t>(block->thread().stack->end()) - 256 - kReturnBytes;
    counter = reinterpret_cast<std::uintptr_t>(&report);
    return;
  }
  const struct sigaction& previous_action = previous_actions[number == SIGFPE];
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(number, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
  } else {  // somebody else's fault: it happens again, without this handler
    signal(number, SIG_DFL);
  }
}

}  // namespace

CatchSignals::CatchSignals() {
  // Again if somebody has put another in its place since.
  {
    const std::lock_guard lock(fork_safe_mutex<CatchSignals>());
    for (int i = 0; i < 2; ++i) {
      struct sigaction installed = {};
      sigaction(kSignals[i], nullptr, &installed);
      if ((installed.sa_flags & SA_SIGINFO) != 0 && installed.sa_sigaction == on_signal) continue;
      previous_actions[i] = installed;
      struct sigaction action = {};
      action.sa_sigaction = on_signal;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  stack_t current = {};
  sigaltstack(nullptr, &current);
  if ((current.ss_flags & SS_DISABLE) == 0) return;
  signal_stack_ = std::make_unique<char[]>(kSignalStackBytes);
  stack_t signal_stack = {};
  signal_stack.ss_sp = signal_stack_.get();
  signal_stack.ss_size = kSignalStackBytes;
  sigaltstack(&signal_stack, nullptr);
}

CatchSignals::~CatchSignals() {
  if (signal_stack_ == nullptr) return;
  stack_t none = {};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

}  // namespace diglot::interpreter
