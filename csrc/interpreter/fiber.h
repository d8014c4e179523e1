// Stacks, and switching between them without a system call.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace diglot::interpreter {

// A stack of its own with a page beyond its end that no one may touch.
class Stack {
 public:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kBytes = 256 * 1024;  // frames are larger
#else
  static constexpr std::size_t kBytes = 64 * 1024;
#endif

  Stack();
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  char* begin() const { return begin_; }
  char* end() const { return begin_ + kBytes; }
  // Whether an address is in the page below.
  bool is_overflow(const void* address) const;

 private:
  char* begin_;
};

// Stacks outlive launches: their pages are dirty and mapped.
std::unique_ptr<Stack> take_stack();
void give_back(std::unique_ptr<Stack> stack);
// Unmaps those that are kept.
void free_stacks();

// Where a suspended stack goes on.
struct Context {
  void* stack_pointer = nullptr;
  // For AddressSanitizer, which must know the stack that it is on.
  const void* stack_begin = nullptr;
  std::size_t stack_bytes = 0;
};

// A context that begins with entry(), which never returns, on a stack.
Context make_context(const Stack& stack, void (*entry)());

// The first thing that an entry does; `from` is who switched to it.
void begin_context(Context& from);

// Suspends the running context in `from` and goes on with `to`.
void switch_context(Context& from, const Context& to);

}  // namespace diglot::interpreter
