#include "interpreter/overflow.h"

#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <mutex>

#include "interpreter/block.h"

namespace diglot::interpreter {

namespace {

constexpr std::size_t kSignalStackBytes = 64 * 1024;
struct sigaction previous_action;

// Where the stack ran out.
thread_local const void* overflow_code = nullptr;

[[noreturn]] void report() {
  current_block()->thread().inside = true;
  current_block()->fail("its stack of " + std::to_string(Stack::kBytes) + " bytes overflows",
                        {overflow_code, {}});
}

void on_signal(int number, siginfo_t* info, void* context) {
  Block* const block = current_block();
  if (block != nullptr && block->thread().stack->is_overflow(info->si_addr)) {
    // The thread goes on at the top of its stack, which nobody needs any more, in report().
    auto* const registers = static_cast<ucontext_t*>(context);
    const auto top = reinterpret_cast<std::uintptr_t>(block->thread().stack->end()) - 256;
    // One further, as a return address is.
#if defined(__x86_64__)
    overflow_code = reinterpret_cast<const char*>(registers->uc_mcontext.gregs[REG_RIP]) + 1;
    registers->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(top - 8);  // as after a call
    registers->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&report);
#else
    overflow_code = reinterpret_cast<const char*>(registers->uc_mcontext.pc) + 1;
    registers->uc_mcontext.sp = top;
    registers->uc_mcontext.pc = reinterpret_cast<std::uintptr_t>(&report);
#endif
    return;
  }
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(number, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
  } else {  // somebody else's fault: it happens again, without this handler
    signal(number, SIG_DFL);
  }
}

}  // namespace

CatchOverflows::CatchOverflows() {
  // Again if somebody has put another in its place since.
  static std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    struct sigaction installed = {};
    sigaction(SIGSEGV, nullptr, &installed);
    if ((installed.sa_flags & SA_SIGINFO) == 0 || installed.sa_sigaction != on_signal) {
      previous_action = installed;
      struct sigaction action = {};
      action.sa_sigaction = on_signal;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigaction(SIGSEGV, &action, nullptr);
    }
  }
  stack_t current = {};
  sigaltstack(nullptr, &current);
  if ((current.ss_flags & SS_DISABLE) == 0) return;
  signal_stack_ = std::make_unique<char[]>(kSignalStackBytes);
  stack_t own = {};
  own.ss_sp = signal_stack_.get();
  own.ss_size = kSignalStackBytes;
  sigaltstack(&own, nullptr);
}

CatchOverflows::~CatchOverflows() {
  if (signal_stack_ == nullptr) return;
  stack_t none = {};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

}  // namespace diglot::interpreter
