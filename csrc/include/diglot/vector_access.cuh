// 16-byte (vectorised) accesses to global memory. They are the widest that a thread can make, so
// they take the fewest instructions to reach the memory's bandwidth.
#pragma once

#include <cstring>
#include <type_traits>

#include "diglot/types.cuh"

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/asynchronous.h"
#endif

namespace diglot {

constexpr int kAccessBytes = 16;

// The elements of one access. Loading or storing a whole Vector is one LDG.128 or STG.128.
template <typename T, int kElements = kAccessBytes / sizeof(T)>
struct alignas(kElements * sizeof(T)) Vector {
  T elements[kElements];
  DIGLOT_DEVICE T& operator[](int i) { return elements[i]; }
  DIGLOT_DEVICE const T& operator[](int i) const { return elements[i]; }
};

// One access. Those of 16 bytes go through a built-in vector type, which keeps the compiler from
// splitting them into the elements' own accesses.
template <typename T, int kElements>
DIGLOT_DEVICE Vector<T, kElements> load_vector(const T* address) {
  Vector<T, kElements> value;
  if constexpr (sizeof(value) == kAccessBytes) {
    const uint4 bits = *reinterpret_cast<const uint4*>(address);
    memcpy(&value, &bits, sizeof(bits));
  } else {
    value = *reinterpret_cast<const Vector<T, kElements>*>(address);
  }
  return value;
}

// 16 bytes. The compiler may not move the load, such as into a branch that uses them: so several
// loads in a row are in flight at once.
template <typename T>
DIGLOT_DEVICE uint4 load_at_once(const T* address) {
#if defined(__CUDA_ARCH__)
  uint4 bits;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(__cvta_generic_to_global(address))
               : "memory");
  return bits;
#else
  return *reinterpret_cast<const uint4*>(address);
#endif
}

// 16 bytes that no thread writes while the kernel runs, so that the load may move past stores.
template <typename T>
DIGLOT_DEVICE uint4 load_constant(const T* address) {
#if defined(__CUDA_ARCH__) || defined(DIGLOT_INTERPRETER)
  return __ldg(reinterpret_cast<const uint4*>(address));
#else
  return *reinterpret_cast<const uint4*>(address);
#endif
}

// The same if the bytes exist, else `absent`, without a branch.
template <typename T>
DIGLOT_DEVICE uint4 load_constant(const T* address, bool exists, uint4 absent) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{\n\t"
      ".reg .pred exists;\n\t"
      "setp.ne.s32 exists, %5, 0;\n\t"
      "@exists ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "+r"(absent.x), "+r"(absent.y), "+r"(absent.z), "+r"(absent.w)
      : "l"(__cvta_generic_to_global(address)), "r"(static_cast<int>(exists)));
  return absent;
#else
  return exists ? load_constant(address) : absent;
#endif
}

// The word that begins `bits`, 0 to 31, behind the start of the first of two.
DIGLOT_DEVICE uint32_t word_between(uint32_t first, uint32_t second, int bits) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(first, second, static_cast<unsigned>(bits));
#else
  return static_cast<uint32_t>((uint64_t{second} << 32 | first) >> bits);
#endif
}

// The 16 bytes that begin `skipped` bytes, a multiple of kUnit, after the start of the first 16.
template <int kUnit>
DIGLOT_DEVICE uint4 shift_bytes(const uint4& first, const uint4& second, int skipped) {
  static_assert(kUnit >= 2);
  uint32_t words[] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  DIGLOT_UNROLL
  for (int i = 0; i < 6; ++i) words[i] = skipped & 8 ? words[i + 2] : words[i];
  DIGLOT_UNROLL
  for (int i = 0; i < 5; ++i) words[i] = skipped & 4 ? words[i + 1] : words[i];
  if constexpr (kUnit < 4) {
    DIGLOT_UNROLL
    for (int i = 0; i < 4; ++i) {
      words[i] = skipped & 2 ? words[i] >> 16 | words[i + 1] << 16 : words[i];
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// Loads 16 bytes if they exist, else returns `absent`. The L2 cache then keeps the bytes longer
// than results. So results reach memory all along, which is faster with arrays larger than the
// cache.
template <typename T>
DIGLOT_DEVICE uint4 load_kept(const T* address, bool exists, uint4 absent) {
#if defined(__CUDA_ARCH__)
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "{\n\t"
      ".reg .pred exists;\n\t"
      "setp.ne.s32 exists, %5, 0;\n\t"
      "@exists ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %6;\n\t"
      "}"
      : "+r"(absent.x), "+r"(absent.y), "+r"(absent.z), "+r"(absent.w)
      : "l"(__cvta_generic_to_global(address)), "r"(static_cast<int>(exists)), "l"(policy));
  return absent;
#else
  return exists ? *reinterpret_cast<const uint4*>(address) : absent;
#endif
}

template <typename T, int kElements>
DIGLOT_DEVICE void store_vector(T* address, const Vector<T, kElements>& value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(value) == kAccessBytes) {
    uint4 bits;
    memcpy(&bits, &value, sizeof(bits));
    // Written out: nvcc splits a plain 16-byte store of values that it has in separate registers.
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(address)), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                   "r"(bits.w)
                 : "memory");
    return;
  }
#endif
  if constexpr (sizeof(value) > kAccessBytes) {
    // More than one access: the elements are wider than the loaded ones.
    constexpr int kPart = kAccessBytes / sizeof(T);
    DIGLOT_UNROLL
    for (int first = 0; first < kElements; first += kPart) {
      Vector<T, kPart> part;
      DIGLOT_UNROLL
      for (int i = 0; i < kPart; ++i) part[i] = value[first + i];
      store_vector(address + first, part);
    }
  } else {
    *reinterpret_cast<Vector<T, kElements>*>(address) = value;
  }
}

// The same if the address exists, without a branch.
template <typename T>
DIGLOT_DEVICE void store_vector(T* address, const Vector<T>& value, bool exists) {
#if defined(__CUDA_ARCH__)
  uint4 bits;
  memcpy(&bits, &value, sizeof(bits));
  asm volatile(
      "{\n\t"
      ".reg .pred exists;\n\t"
      "setp.ne.s32 exists, %5, 0;\n\t"
      "@exists st.global.v4.b32 [%0], {%1, %2, %3, %4};\n\t"
      "}"
      :
      : "l"(__cvta_generic_to_global(address)), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w),
        "r"(static_cast<int>(exists))
      : "memory");
#else
  if (exists) store_vector(address, value);
#endif
}

// Likewise an element of two bytes.
template <typename T>
DIGLOT_DEVICE void store_element(T* address, const T& value, bool exists) {
  static_assert(sizeof(T) == 2);
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  memcpy(&bits, &value, sizeof(bits));
  asm volatile(
      "{\n\t"
      ".reg .pred exists;\n\t"
      "setp.ne.s32 exists, %2, 0;\n\t"
      "@exists st.global.b16 [%0], %1;\n\t"
      "}"
      :
      : "l"(__cvta_generic_to_global(address)), "h"(bits), "r"(static_cast<int>(exists))
      : "memory");
#else
  if (exists) *address = value;
#endif
}

// An access as 16 bytes in registers. Where the compiler knows 16-bit elements one by one, each
// takes a register of its own; packed, it takes half.
template <typename T, int kElements>
DIGLOT_DEVICE uint4 pack(const Vector<T, kElements>& value) {
  static_assert(sizeof(value) == sizeof(uint4));
  uint4 bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Hides from the compiler that the bits stay the same, so that it unpacks here and no earlier.
DIGLOT_DEVICE uint4 as_they_are(uint4 bits) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#endif
  return bits;
}

template <typename T>
DIGLOT_DEVICE Vector<T> unpack(uint4 bits) {
  bits = as_they_are(bits);
  Vector<T> value;
  memcpy(&value, &bits, sizeof(bits));
  return value;
}

// The elements of an access, in the type of the computation.
template <typename T>
DIGLOT_DEVICE auto unpack_computed(uint4 bits) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  using Compute = compute_t<T>;
  Vector<Compute, kElements> result;
  if constexpr (std::is_same_v<T, bfloat16>) {
    // The upper half of a float: one instruction each, whichever half of a word it is in.
    const uint32_t pairs[] = {bits.x, bits.y, bits.z, bits.w};
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const uint32_t bits_of_float = i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u;
      memcpy(&result[i], &bits_of_float, sizeof(bits_of_float));
    }
  } else {
    Vector<T> values;
    memcpy(&values, &bits, sizeof(bits));
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) result[i] = convert<Compute>(values[i]);
  }
  return result;
}

// An access in registers: packed, if it has 16 bytes.
template <typename T, int kElements, bool kIsPacked = kElements * sizeof(T) == kAccessBytes>
struct Held {
  uint4 bits;

  DIGLOT_DEVICE static Held make(const Vector<T, kElements>& value) { return {pack(value)}; }
  DIGLOT_DEVICE Vector<T, kElements> get() const { return unpack<T>(bits); }
  // In the type of the computation.
  DIGLOT_DEVICE auto computed() const { return unpack_computed<T>(as_they_are(bits)); }
};
template <typename T, int kElements>
struct Held<T, kElements, false> {
  Vector<T, kElements> value;

  DIGLOT_DEVICE static Held make(const Vector<T, kElements>& value) { return {value}; }
  DIGLOT_DEVICE Vector<T, kElements> get() const { return value; }
  DIGLOT_DEVICE auto computed() const {
    Vector<compute_t<T>, kElements> result;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) result[i] = convert<compute_t<T>>(value.elements[i]);
    return result;
  }
};

// Makes the compiler compute an address of global memory once, not from its terms at each use.
template <typename T>
DIGLOT_DEVICE T* as_it_is(T* address) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(address));
  __builtin_assume(__isGlobal(address));
#endif
  return address;
}

// The address of an element less than 2 GiB further on: one instruction, where 64-bit indices take
// several.
template <typename T>
DIGLOT_DEVICE T* further(T* address, int elements) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(address) +
                              static_cast<uint32_t>(elements * static_cast<int>(sizeof(T))));
}

// Copies 16 bytes from global to shared memory asynchronously, past the registers (cp.async). The
// thread sees them after wait_for_copies.
DIGLOT_DEVICE void copy_async(uint4* shared, const void* global,
                              [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::copy_async(shared, global, sizeof(*shared), place);
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global))
               : "memory");
#else
  *shared = *static_cast<const uint4*>(global);
#endif
}

// The same for the first `bytes` of kBytes, 4, 8 or 16, and zeros behind them.
template <int kBytes = kAccessBytes>
DIGLOT_DEVICE void copy_async_part(void* shared, const void* global, int bytes,
                                   [[maybe_unused]] Place place = Place::here()) {
#if defined(__CUDA_ARCH__)
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const auto from = __cvta_generic_to_global(global);
  if constexpr (kBytes == kAccessBytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(to), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
#else
  for (int i = bytes; i < kBytes; ++i) reinterpret_cast<char*>(shared)[i] = 0;
  if (bytes == 0) return;
#if defined(DIGLOT_INTERPRETER)
  interpreter::copy_async(shared, global, static_cast<std::size_t>(bytes), place);
#else
  memcpy(shared, global, static_cast<std::size_t>(bytes));
#endif
#endif
}

DIGLOT_DEVICE void wait_for_copies([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::wait_for_copies(place);
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

// Commits the copies that the thread has issued since its last call as one group.
DIGLOT_DEVICE void group_copies([[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::commit_copies(place);
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

// Waits until at most the thread's latest `newer` groups, 0 to 3, are in flight.
DIGLOT_DEVICE void wait_for_copies_before([[maybe_unused]] int newer,
                                          [[maybe_unused]] Place place = Place::here()) {
#if defined(DIGLOT_INTERPRETER)
  interpreter::wait_for_copies_before(newer, place);
#elif defined(__CUDA_ARCH__)
  switch (newer) {  // the instruction takes an immediate
    case 0: asm volatile("cp.async.wait_group 0;" : : : "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" : : : "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" : : : "memory"); break;
    default: asm volatile("cp.async.wait_group 3;" : : : "memory");
  }
#endif
}

// The number of the lowest bit that is set; there is one.
DIGLOT_DEVICE int lowest_bit(unsigned bits) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(bits)) - 1;
#else
  return __builtin_ctz(bits);
#endif
}

// Prefetches a line of memory to the L2 cache.
DIGLOT_DEVICE void prefetch(const void* global) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" : : "l"(__cvta_generic_to_global(global)));
#endif
}

// Elements from the last multiple of 16 bytes to `address`.
template <typename T>
DIGLOT_HOST_DEVICE int elements_since_alignment(const T* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kAccessBytes / sizeof(T));
}

// Elements to step over until `address` is a multiple of 16 bytes.
template <typename T>
DIGLOT_HOST_DEVICE int elements_to_alignment(const T* address) {
  const auto misaligned = reinterpret_cast<uintptr_t>(address) % kAccessBytes;
  return misaligned == 0 ? 0 : static_cast<int>((kAccessBytes - misaligned) / sizeof(T));
}

}  // namespace diglot
