// 16-byte global-memory accesses: the widest a thread can make, and what it takes to reach memory
// bandwidth with few instructions.
#pragma once

#include <cstring>

#include "diglot/platform.cuh"

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
  *reinterpret_cast<Vector<T, kElements>*>(address) = value;
}

// An access as it is held: elements of 16 bits take a register each where the compiler knows them
// one by one, and half of one so.
template <typename T, int kElements>
DIGLOT_DEVICE uint4 pack(const Vector<T, kElements>& value) {
  static_assert(sizeof(value) == sizeof(uint4));
  uint4 bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <typename T>
DIGLOT_DEVICE Vector<T> unpack(uint4 bits) {
#if defined(__CUDA_ARCH__)
  // The compiler does not know that the bits are the same, and unpacks them here, not earlier.
  asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#endif
  Vector<T> value;
  memcpy(&value, &bits, sizeof(bits));
  return value;
}

// Elements to step over until `address` is a multiple of 16 bytes.
template <typename T>
DIGLOT_HOST_DEVICE int elements_to_alignment(const T* address) {
  const auto misaligned = reinterpret_cast<uintptr_t>(address) % kAccessBytes;
  return misaligned == 0 ? 0 : static_cast<int>((kAccessBytes - misaligned) / sizeof(T));
}

}  // namespace diglot
