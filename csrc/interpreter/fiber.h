// Stacks, and switching between them without a system call.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace diglot::interpreter {

// A stack of its own with a page beyond its end that no one may touch.
class Stack {
 public:
  static constexpr std::size_t kBytes = 64 * 1024;

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

// Where a suspended stack goes on.
struct Context {
  void* stack_pointer = nullptr;
};

// A context that begins with entry(), which never returns, on a stack.
Context make_context(const Stack& stack, void (*entry)());

// Suspends the running context in `from` and goes on with `to`.
void switch_context(Context& from, const Context& to);

}  // namespace diglot::interpreter
