#include "interpreter/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <new>

#include "diglot/launch/fork_safe_mutex.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace diglot::interpreter {

namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

struct Pool {
  std::mutex& mutex = fork_safe_mutex<Pool>();
  std::vector<std::unique_ptr<Stack>> stacks;
};
Pool& pool() {
  static Pool& instance = *new Pool;  // threads may end after the process' statics
  return instance;
}

}  // namespace

Stack::Stack() {
  const std::size_t guard = page_bytes();
  void* const memory = mmap(nullptr, guard + kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (mprotect(memory, guard, PROT_NONE) != 0) {
    munmap(memory, guard + kBytes);
    throw std::bad_alloc();
  }
  begin_ = static_cast<char*>(memory) + guard;
}

Stack::~Stack() { munmap(begin_ - page_bytes(), page_bytes() + kBytes); }

bool Stack::is_overflow(const void* address) const {
  const char* const byte = static_cast<const char*>(address);
  return byte < begin_ && byte >= begin_ - page_bytes();
}

std::unique_ptr<Stack> take_stack() {
  const std::lock_guard lock(pool().mutex);
  if (pool().stacks.empty()) return std::make_unique<Stack>();
  std::unique_ptr<Stack> stack = std::move(pool().stacks.back());
  pool().stacks.pop_back();
  return stack;
}

void give_back(std::unique_ptr<Stack> stack) {
  // A launch of clusters takes more. With all of them kept, the process would have tens of
  // thousands of memory maps. A system limits their number, and searches them slowly.
  constexpr std::size_t kKept = 2048;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack->begin(), Stack::kBytes);  // of frames that were never left
#endif
  const std::lock_guard lock(pool().mutex);
  if (pool().stacks.size() < kKept) pool().stacks.push_back(std::move(stack));
}

void free_stacks() {
  const std::lock_guard lock(pool().mutex);
  pool().stacks.clear();
}

// Pushes the registers that a called function must preserve, exchanges the stack pointers, and pops
// the other side's registers. A new context's stack looks as if it had been suspended so.
#if defined(__x86_64__)

asm(R"(
.text
.globl diglot_switch_context
.hidden diglot_switch_context
.type diglot_switch_context, @function
diglot_switch_context:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size diglot_switch_context, .-diglot_switch_context
)");
constexpr int kSavedWords = 6;  // below the return address
constexpr int kReturnWord = kSavedWords;
constexpr int kFrameWords = kSavedWords + 2;  // the entry's stack is as after a call

#elif defined(__aarch64__)

asm(R"(
.text
.globl diglot_switch_context
.hidden diglot_switch_context
.type diglot_switch_context, %function
diglot_switch_context:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size diglot_switch_context, .-diglot_switch_context
)");
constexpr int kReturnWord = 11;  // x30
constexpr int kFrameWords = 20;

#else
#error "the interpreter switches stacks on x86-64 and 64-bit Arm only"
#endif

extern "C" void diglot_switch_context(void** from, void* to);

Context make_context(const Stack& stack, void (*entry)()) {
  auto* const frame = reinterpret_cast<std::uintptr_t*>(stack.end()) - kFrameWords;
  for (int word = 0; word < kFrameWords; ++word) frame[word] = 0;
  frame[kReturnWord] = reinterpret_cast<std::uintptr_t>(entry);
  return {frame, stack.begin(), Stack::kBytes};
}

#if defined(__SANITIZE_ADDRESS__)

void begin_context(Context& from) {
  __sanitizer_finish_switch_fiber(nullptr, &from.stack_begin, &from.stack_bytes);
}

void switch_context(Context& from, const Context& to) {
  void* frames = nullptr;
  __sanitizer_start_switch_fiber(&frames, to.stack_begin, to.stack_bytes);
  diglot_switch_context(&from.stack_pointer, to.stack_pointer);
  __sanitizer_finish_switch_fiber(frames, nullptr, nullptr);
}

#else

void begin_context(Context&) {}

void switch_context(Context& from, const Context& to) {
  diglot_switch_context(&from.stack_pointer, to.stack_pointer);
}

#endif

}  // namespace diglot::interpreter
