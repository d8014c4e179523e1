#include "interpreter/shared_memory.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "interpreter/image.h"

// Dynamic shared memory: kMaxSharedBytes, which build.py defines under this and under the names
// that kernels give it.
extern "C" __attribute__((visibility("hidden"))) thread_local char diglot_dynamic_shared[];

namespace diglot::interpreter {

namespace {

constexpr std::uint32_t kDynamicAddress = 1024;
constexpr std::uint32_t kStaticAddress = kDynamicAddress + kMaxSharedBytes;

// Where dynamic shared memory begins in a block's, the same for all blocks.
std::size_t dynamic_offset() {
  static const auto offset =
      static_cast<std::size_t>(diglot_dynamic_shared - image().thread_locals.begin);
  return offset;
}

bool is_dynamic(std::size_t offset) {
  return offset >= dynamic_offset() && offset < dynamic_offset() + kMaxSharedBytes;
}

const char* verb(Access access) { return is_read(access) ? "read" : "written"; }

// The last static array that begins at or before an offset, or null.
const Variable* last_until(std::size_t offset) {
  const std::vector<Variable>& variables = *image().variables;
  const auto after =
      std::upper_bound(variables.begin(), variables.end(), offset,
                       [](std::size_t o, const Variable& v) { return o < v.offset; });
  return after == variables.begin() ? nullptr : &*(after - 1);
}

std::vector<std::uint64_t>& written_of_os_thread() {
  static thread_local std::vector<std::uint64_t> bits;
  bits.assign(bits.size(), 0);
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

}  // namespace

SharedMemory::SharedMemory(std::size_t dynamic_bytes)
    : begin_(const_cast<char*>(image().thread_locals.begin)),
      bytes_(static_cast<std::size_t>(image().thread_locals.end - image().thread_locals.begin)),
      dynamic_bytes_(dynamic_bytes),
      written_(&written_of_os_thread()) {
  // A kernel that counts on zeros finds none. NaN, in every floating type.
  std::memset(diglot_dynamic_shared, 0xff, dynamic_bytes);
}

std::uint32_t SharedMemory::address(std::size_t offset) const {
  const std::size_t dynamic = dynamic_offset();
  if (is_dynamic(offset)) return kDynamicAddress + static_cast<std::uint32_t>(offset - dynamic);
  const std::size_t before = offset < dynamic ? offset : offset - kMaxSharedBytes;
  return kStaticAddress + static_cast<std::uint32_t>(before);
}

char* SharedMemory::at(std::uint32_t address) const {
  std::size_t offset = 0;
  if (address < kDynamicAddress) return nullptr;
  if (address < kStaticAddress) {
    offset = dynamic_offset() + (address - kDynamicAddress);
  } else {
    offset = address - kStaticAddress;
    if (offset >= dynamic_offset()) offset += kMaxSharedBytes;
  }
  return offset < bytes_ ? begin_ + offset : nullptr;
}

std::string SharedMemory::name_of(std::size_t offset) {
  if (is_dynamic(offset)) {
    return "byte " + std::to_string(offset - dynamic_offset()) + " of dynamic shared memory";
  }
  const Variable* const variable = last_until(offset);
  if (variable == nullptr) return "byte " + std::to_string(offset);
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(variable->symbol.c_str(), nullptr, nullptr, nullptr), std::free);
  const std::string whole = name == nullptr ? variable->symbol : name.get();
  const std::size_t colon = whole.rfind(':');
  return "byte " + std::to_string(offset - variable->offset) + " of `" +
         (colon == std::string::npos ? whole : whole.substr(colon + 1)) + "`";
}

// The fault of an access to static shared memory, or "".
std::string SharedMemory::find_fault(std::size_t begin, std::size_t end, Access access,
                                     bool& is_tracked) const {
  if (image().variables->empty()) return "";  // of a library without a symbol table
  const Variable* const variable = last_until(begin);
  if (variable != nullptr && begin < variable->offset + variable->bytes) {
    is_tracked = variable->is_shared;
    if (end <= variable->offset + variable->bytes) return "";
  }
  const std::string what = std::to_string(end - begin) + " bytes out of bounds are " + verb(access);
  if (variable == nullptr) return what + ", before all shared memory";
  const std::size_t after_last = variable->offset + variable->bytes;
  return what +
         (begin < after_last ? ", across the end of"
                             : ", " + std::to_string(begin - after_last) + " bytes after") +
         " shared memory of " + std::to_string(variable->bytes) + " bytes";
}

std::string SharedMemory::note(const char* begin, const char* end, Access access,
                               bool& is_tracked) {
  const std::size_t first = offset(begin), last = offset(end);
  is_tracked = true;
  if (is_dynamic(first)) {
    if (last > dynamic_offset() + dynamic_bytes_) {
      return std::to_string(end - begin) + " bytes out of bounds are " + verb(access) +
             ": the block has " + std::to_string(dynamic_bytes_) +
             " bytes of dynamic shared memory";
    }
  } else {
    const std::string fault = find_fault(first, last, access, is_tracked);
    if (!fault.empty()) return fault;
  }
  if (!is_tracked) return "";
  std::vector<std::uint64_t>& bits = *written_;
  if (access == Access::kWrite || access == Access::kStrongWrite) {
    if (bits.empty()) bits.resize((bytes_ + 63) / 64);
    visit_bits(first, last, [&](std::size_t word, std::uint64_t mask) {
      bits[word] |= mask;
      return false;
    });
    return "";
  }
  // One written byte is enough: nobody writes the padding of a structure that is copied as a whole.
  const bool is_written =
      !bits.empty() && visit_bits(first, last, [&](std::size_t word, std::uint64_t mask) {
        return (bits[word] & mask) != 0;
      });
  if (is_written) return "";
  return "shared memory is read that no thread of the block has written: a barrier is missing, or "
         "a writer";
}

}  // namespace diglot::interpreter
