// Checks a kernel's accesses: whether the memory is the kernel's, and for shared memory, whether a
// thread of the block has written it and whether threads race for it.
#include "interpreter/memory.h"

#include <link.h>

#include <algorithm>
#include <cstring>

#include "interpreter/block.h"
#include "interpreter/variables.h"

// Dynamic shared memory: kMaxSharedBytes, which build.py defines under this and under the names
// that kernels give it.
extern "C" __attribute__((visibility("hidden"))) thread_local char diglot_dynamic_shared[];

namespace diglot::interpreter {

namespace {

bool contains(const Range& range, const char* begin, const char* end) {
  return begin >= range.begin && end <= range.end && begin <= end;
}

// The range that holds all of an access and admits it, or one that only holds it, or null.
const Range* find(const std::vector<Range>& ranges, const char* begin, const char* end,
                  Access access) {
  const Range* found = nullptr;
  for (const Range& range : ranges) {
    if (!contains(range, begin, end)) continue;
    if (range.is_writable || is_read(access)) return &range;
    found = &range;
  }
  return found;
}

// This library's code and constants, and this OS thread's copy of its thread-local variables, which
// is where `__shared__` puts arrays.
struct Module {
  std::vector<Range> image;  // by segment
  Range shared{};
  const std::vector<Variable>* variables = nullptr;  // of `shared`, if the library names them
};

int describe_module(dl_phdr_info* info, std::size_t, void* result) {
  std::vector<Range> image;
  Range relocated{};  // written by the loader, and by nobody else
  const ElfW(Phdr)* thread_local_segment = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    const char* const begin = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    const Range range{begin, begin + segment.p_memsz, (segment.p_flags & PF_W) != 0};
    if (segment.p_type == PT_TLS) thread_local_segment = &segment;
    if (segment.p_type == PT_GNU_RELRO) relocated = range;
    if (segment.p_type == PT_LOAD) image.push_back(range);
  }
  const char* const code = reinterpret_cast<const char*>(&describe_module);
  if (find(image, code, code + 1, Access::kRead) == nullptr) return 0;
  auto* const module = static_cast<Module*>(result);
  for (Range& range : image) {
    if (contains(range, relocated.begin, relocated.end)) range.begin = relocated.end;
  }
  relocated.is_writable = false;
  image.push_back(relocated);
  module->image = std::move(image);
  if (thread_local_segment != nullptr && info->dlpi_tls_data != nullptr) {
    const char* const begin = static_cast<const char*>(info->dlpi_tls_data);
    module->shared = {begin, begin + thread_local_segment->p_memsz};
  }
  return 1;
}

const Module& module() {
  static thread_local Module instance;
  // The thread-local segment comes into being with its first use.
  if (instance.shared.begin == nullptr) {
    static const std::vector<Variable> variables = shared_variables();
    dl_iterate_phdr(describe_module, &instance);
    instance.variables = &variables;
  }
  return instance;
}

// Which bytes of the shared memory of this OS thread its block has written: a bit for each.
std::vector<std::uint64_t>& written() {
  static thread_local std::vector<std::uint64_t> bits;
  return bits;
}

// Calls visit(word, mask) for the words of bits of some bytes, until it returns true.
template <typename Visit>
bool visit_bits(std::size_t first, std::size_t last, Visit visit) {
  while (first < last) {
    const std::size_t count = std::min<std::size_t>(64 - first % 64, last - first);
    if (visit(first / 64, ~std::uint64_t{0} >> (64 - count) << first % 64)) return true;
    first += count;
  }
  return false;
}

void note_written(const Range& shared, const char* begin, const char* end) {
  std::vector<std::uint64_t>& bits = written();
  bits.resize((static_cast<std::size_t>(shared.end - shared.begin) + 63) / 64);
  visit_bits(begin - shared.begin, end - shared.begin, [&](std::size_t word, std::uint64_t mask) {
    bits[word] |= mask;
    return false;
  });
}

bool is_written(const Range& shared, const char* begin, const char* end) {
  const std::vector<std::uint64_t>& bits = written();
  // Of a structure that is copied as a whole, nobody writes what lies between its members.
  return !bits.empty() &&
         visit_bits(begin - shared.begin, end - shared.begin,
                    [&](std::size_t word, std::uint64_t mask) { return (bits[word] & mask) != 0; });
}

// Where the nearest of the ranges lies, for a message.
std::string beside(const std::vector<Range>& ranges, const char* begin, const char* end) {
  const Range* nearest = nullptr;
  std::ptrdiff_t least = PTRDIFF_MAX;
  for (const Range& range : ranges) {
    const std::ptrdiff_t distance = begin < range.begin ? range.begin - end : begin - range.end;
    if (distance < least) least = distance, nearest = &range;
  }
  if (nearest == nullptr) return "the kernel was given no memory";
  if (begin < nearest->begin && end > nearest->begin) return "across the beginning of a tensor";
  if (begin < nearest->end && end > nearest->end) return "across the end of a tensor";
  return std::to_string(least) + " bytes " + (begin < nearest->begin ? "before" : "after") +
         " a tensor of " + std::to_string(nearest->end - nearest->begin) + " bytes";
}

const char* verb(Access access) { return is_read(access) ? "read" : "written"; }

bool is_local(const Thread& thread, const void* address, std::size_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  return contains({thread.stack->begin(), thread.stack->end()}, begin, begin + bytes);
}

// What is wrong with an access to a block's static shared memory; "" if nothing.
std::string fault_in_shared(const char* begin, const char* end, Access access, bool& is_tracked) {
  const Module& library = module();
  if (library.variables->empty()) return "";  // of a library without a symbol table
  const auto offset = static_cast<std::size_t>(begin - library.shared.begin);
  auto after = std::upper_bound(library.variables->begin(), library.variables->end(), offset,
                                [](std::size_t o, const Variable& v) { return o < v.offset; });
  const Variable* const variable = after == library.variables->begin() ? nullptr : &*--after;
  if (variable != nullptr && offset < variable->offset + variable->bytes) {
    is_tracked = variable->is_shared;
    if (offset + (end - begin) <= variable->offset + variable->bytes) return "";
  }
  const std::string what = std::to_string(end - begin) + " bytes out of bounds are " + verb(access);
  if (variable == nullptr) return what + ", before all shared memory";
  const std::size_t after_last = variable->offset + variable->bytes;
  return what +
         (offset < after_last ? ", across the end of"
                              : ", " + std::to_string(offset - after_last) + " bytes after") +
         " shared memory of " + std::to_string(variable->bytes) + " bytes";
}

}  // namespace

void check(const void* address, std::size_t bytes, Access access, const Site& site, Scope scope) {
  Block* const block = current_block();
  if (block == nullptr || bytes == 0) return;  // host code
  const char* const begin = static_cast<const char*>(address);
  const char* const end = begin + bytes;
  block->tick(site);
  Thread& thread = block->thread();
  if (is_local(thread, address, bytes)) return;
  const bool is_write = access == Access::kWrite || access == Access::kStrongWrite;
  if (is_write) thread.looks = 0;
  const auto fail_read_only = [&](const char* of_what) {
    block->fail(std::to_string(bytes) + " bytes of " + of_what + " are written", site);
  };
  const auto note_global = [&] {
    const Detector* const detector = block->detector();
    if (detector == nullptr || !detector->watches(address)) return;
    block->note(address, bytes, access, scope, site);
  };
  const std::vector<Range>* const ranges = block->grid().arguments;
  if (ranges != nullptr) {
    if (const Range* const range = find(*ranges, begin, end, access)) {
      if (range->is_writable || is_read(access)) return note_global();
      fail_read_only("a tensor that may only be read");
    }
  }
  const Kernel& kernel = block->grid().kernel;
  const char* const parameters = static_cast<const char*>(kernel.parameters);
  if (contains({parameters, parameters + kernel.bytes}, begin, end)) return;
  if (contains(module().shared, begin, end)) {
    const Range dynamic{diglot_dynamic_shared,
                        diglot_dynamic_shared + block->grid().launch.shared_bytes};
    bool is_tracked = true;
    if (begin >= dynamic.begin && begin < dynamic.begin + kMaxSharedBytes) {
      if (end > dynamic.end) {
        block->fail(std::to_string(bytes) + " bytes out of bounds are " + verb(access) +
                        ": the block has " + std::to_string(dynamic.end - dynamic.begin) +
                        " bytes of dynamic shared memory",
                    site);
      }
    } else {
      const std::string fault = fault_in_shared(begin, end, access, is_tracked);
      if (!fault.empty()) block->fail(fault, site);
    }
    if (!is_tracked) return;
    if (is_write) note_written(module().shared, begin, end);
    if (!is_written(module().shared, begin, end)) {
      block->fail(
          "shared memory is read that no thread of the block has written: a barrier is "
          "missing, or a writer",
          site);
    }
    block->note(address, bytes, access, scope, site);
    return;
  }
  // Of other blocks of the cluster it is not known what has been written.
  if (block->grid().launch.cluster_blocks > 1) {
    const Range shared = module().shared;
    for (const auto& other : block->grid().cluster.shared) {
      const char* const start = other;
      if (start == nullptr || !contains({start, start + (shared.end - shared.begin)}, begin, end))
        continue;
      const char* const mirrored = shared.begin + (begin - start);
      const bool is_dynamic =
          mirrored >= diglot_dynamic_shared && mirrored < diglot_dynamic_shared + kMaxSharedBytes;
      bool is_tracked = true;
      if (is_dynamic &&
          mirrored + bytes > diglot_dynamic_shared + block->grid().launch.shared_bytes) {
        block->fail(std::to_string(bytes) + " bytes out of bounds are " + verb(access) +
                        " in the dynamic shared memory of another block",
                    site);
      }
      const std::string fault =
          is_dynamic ? "" : fault_in_shared(mirrored, mirrored + bytes, access, is_tracked);
      if (!fault.empty()) block->fail(fault + ", of another block", site);
      if (is_tracked) block->note(address, bytes, access, scope, site);
      return;
    }
  }
  if (const Range* const range = find(module().image, begin, end, access)) {
    if (range->is_writable || is_read(access)) return note_global();
    fail_read_only("a constant");
  }
  constexpr std::uintptr_t kNullPage = 4096;
  if (reinterpret_cast<std::uintptr_t>(address) < kNullPage) {
    block->fail("a null pointer is used", site);
  }
  if (ranges == nullptr) return note_global();
  block->fail(std::to_string(bytes) + " bytes out of bounds are " + verb(access) + ", " +
                  beside(*ranges, begin, end),
              site);
}

namespace {

void check_volatile(const void* address, std::size_t bytes, Access access, const Site& site) {
  check(address, bytes, access, site);
  Block* const block = current_block();
  if (block == nullptr || is_local(block->thread(), address, bytes)) return;
  if (block->detector() != nullptr) {
    block->detector()->note_volatile(block->component(),
                                     {address, access, Ordering::kRelaxed, Scope::kSystem, site});
  }
  if (access == Access::kStrongRead) {
    block->look(site);
  } else {
    note_change();
  }
}

}  // namespace

void check_look(const void* address, std::size_t bytes, const Site& site) {
  check_volatile(address, bytes, Access::kStrongRead, site);
}

void check_change(const void* address, std::size_t bytes, const Site& site) {
  check_volatile(address, bytes, Access::kStrongWrite, site);
}

bool begin_atomic(const void* address, std::size_t bytes, Access access, Scope scope, Place place) {
#if !defined(__SANITIZE_ADDRESS__)  // there, only these accesses would be known
  check(address, bytes, access, {nullptr, place}, scope);
#endif
  Block* const block = current_block();
  if (block == nullptr || block->detector() == nullptr) return false;
  block->detector()->begin_atomic(address);
  return true;
}

void end_atomic(const void* address, Access access, Ordering ordering, Scope scope, Place place) {
  Block& block = *current_block();
  block.detector()->end_atomic(block.component(),
                               {address, access, ordering, scope, {nullptr, place}});
}

void fence(Scope scope) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  Block* const block = current_block();
  if (block != nullptr && block->detector() != nullptr) {
    block->detector()->fence(block->component(), scope);
  }
}

void clear_shared(std::size_t dynamic_bytes) {
  written().assign(written().size(), 0);
  // A kernel that counts on zeros finds none. NaN, in every floating type.
  std::memset(diglot_dynamic_shared, 0xff, dynamic_bytes);
}

Range shared_window() { return module().shared; }

void touch(const void* address, std::size_t bytes, Access access, Place place) {
#if !defined(__SANITIZE_ADDRESS__)  // there, only these accesses would be known
  check(address, bytes, access, {nullptr, place});
#endif
}

}  // namespace diglot::interpreter
