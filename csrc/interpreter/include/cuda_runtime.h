// Stands in for CUDA's header of this name where the host compiler compiles a kernel for the
// interpreter. It has the functions that kernels of this project use, and that a user's own are
// likely to use.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "interpreter/interpreter.h"

// --- qualifiers ----------------------------------------------------------------------------------

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
// One copy for each block: a block's threads are fibers of one OS thread. build.py defines the
// arrays of dynamic shared memory, which kernels declare as extern.
#define __shared__ thread_local

// --- types ---------------------------------------------------------------------------------------

#define DIGLOT_VECTOR(NAME, TYPE)                                                         \
  struct NAME##1 { TYPE x; };                                                             \
  struct alignas(2 * sizeof(TYPE)) NAME##2 { TYPE x, y; };                                \
  struct NAME##3 { TYPE x, y, z; };                                                       \
  struct alignas(sizeof(TYPE) >= 4 ? 16 : 4 * sizeof(TYPE)) NAME##4 { TYPE x, y, z, w; }; \
  inline NAME##1 make_##NAME##1(TYPE x) { return {x}; }                                   \
  inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                        \
  inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; }             \
  inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }
DIGLOT_VECTOR(char, signed char)
DIGLOT_VECTOR(uchar, unsigned char)
DIGLOT_VECTOR(short, short)
DIGLOT_VECTOR(ushort, unsigned short)
DIGLOT_VECTOR(int, int)
DIGLOT_VECTOR(uint, unsigned)
DIGLOT_VECTOR(longlong, long long)
DIGLOT_VECTOR(ulonglong, unsigned long long)
DIGLOT_VECTOR(float, float)
DIGLOT_VECTOR(double, double)
#undef DIGLOT_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 size) : x(size.x), y(size.y), z(size.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

namespace diglot::interpreter {
inline uint3 to_uint3(Index3 index) { return {index.x, index.y, index.z}; }
inline dim3 to_dim3(Index3 size) { return {size.x, size.y, size.z}; }
}  // namespace diglot::interpreter

constexpr int warpSize = 32;

#define threadIdx (::diglot::interpreter::to_uint3(::diglot::interpreter::thread_index()))
#define blockIdx (::diglot::interpreter::to_uint3(::diglot::interpreter::block_index()))
#define blockDim (::diglot::interpreter::to_dim3(::diglot::interpreter::block_size()))
#define gridDim (::diglot::interpreter::to_dim3(::diglot::interpreter::grid_size()))

// --- the CUDA runtime, as far as launchers need it -----------------------------------------------

using cudaStream_t = struct DiglotNoStream*;
enum cudaError_t { cudaSuccess = 0 };
struct cudaFuncAttributes {};
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel) {
  return cudaSuccess;
}

// --- barriers, warps -----------------------------------------------------------------------------

namespace diglot::interpreter {

// A value of up to 8 bytes, and back.
template <typename T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8, "a warp exchanges values of at most 8 bytes");
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(value));
  return bits;
}
template <typename T>
T from_bits(std::uint64_t bits) {
  T value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// A shuffle: source(lane) says whose value the calling lane gets.
template <typename T, typename Source>
T shuffle(unsigned mask, T value, int width, const char* what, Place place, Source source) {
  if (width < 1 || width > kWarp || (width & (width - 1)) != 0) fail_width(what, place);
  const Lanes lanes = warp_exchange(mask, to_bits(value), what, place);
  const int from = source(lanes.lane);
  if ((lanes.mask >> from & 1) == 0) fail_absent_lane(what, from, place);
  return from_bits<T>(lanes.values[from]);
}

// The bounds of the group of `width` lanes that a lane is in.
inline int group_begin(int lane, int width) { return lane & ~(width - 1); }

template <typename T, typename Combine>
T reduce_lanes(unsigned mask, T value, const char* what, Place place, Combine combine) {
  const Lanes lanes = warp_exchange(mask, to_bits(value), what, place);
  T result = value;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (lane != lanes.lane && (lanes.mask >> lane & 1)) {
      result = combine(result, from_bits<T>(lanes.values[lane]));
    }
  }
  return result;
}

}  // namespace diglot::interpreter

#define DIGLOT_PLACE ::diglot::Place place = ::diglot::Place::here()

inline void __syncthreads(DIGLOT_PLACE) {
  diglot::interpreter::block_barrier(false, "__syncthreads()", place);
}
inline int __syncthreads_count(int predicate, DIGLOT_PLACE) {
  return diglot::interpreter::block_barrier(predicate != 0, "__syncthreads_count()", place).count;
}
inline int __syncthreads_and(int predicate, DIGLOT_PLACE) {
  return diglot::interpreter::block_barrier(predicate != 0, "__syncthreads_and()", place).all;
}
inline int __syncthreads_or(int predicate, DIGLOT_PLACE) {
  return diglot::interpreter::block_barrier(predicate != 0, "__syncthreads_or()", place).any;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, DIGLOT_PLACE) {
  diglot::interpreter::warp_exchange(mask, 0, "__syncwarp()", place);
}
inline unsigned __activemask() { return diglot::interpreter::active_mask(); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, DIGLOT_PLACE) {
  return diglot::interpreter::shuffle(mask, value, width, "__shfl_sync()", place, [=](int lane) {
    return diglot::interpreter::group_begin(lane, width) + (source & (width - 1));
  });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, DIGLOT_PLACE) {
  return diglot::interpreter::shuffle(mask, value, width, "__shfl_up_sync()", place, [=](int lane) {
    const int from = lane - static_cast<int>(delta % 32);  // a GPU sees five bits of it
    return from < diglot::interpreter::group_begin(lane, width) ? lane : from;
  });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, DIGLOT_PLACE) {
  return diglot::interpreter::shuffle(
      mask, value, width, "__shfl_down_sync()", place, [=](int lane) {
        const int from = lane + static_cast<int>(delta % 32);
        return from >= diglot::interpreter::group_begin(lane, width) + width ? lane : from;
      });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, DIGLOT_PLACE) {
  return diglot::interpreter::shuffle(
      mask, value, width, "__shfl_xor_sync()", place, [=](int lane) {
        const int from = lane ^ (lanes & 31);
        return from >= diglot::interpreter::group_begin(lane, width) + width ? lane : from;
      });
}
inline unsigned __ballot_sync(unsigned mask, int predicate, DIGLOT_PLACE) {
  const auto lanes =
      diglot::interpreter::warp_exchange(mask, predicate != 0, "__ballot_sync()", place);
  unsigned result = 0;
  for (int lane = 0; lane < warpSize; ++lane) {
    if (lanes.mask >> lane & 1) result |= static_cast<unsigned>(lanes.values[lane]) << lane;
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate, DIGLOT_PLACE) {
  return __ballot_sync(mask, predicate, place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, DIGLOT_PLACE) {
  return __ballot_sync(mask, !predicate, place) == 0;
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value, DIGLOT_PLACE) {
  return diglot::interpreter::reduce_lanes(mask, value, "__reduce_add_sync()", place,
                                           [](T a, T b) { return a + b; });
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, DIGLOT_PLACE) {
  return diglot::interpreter::reduce_lanes(mask, value, "__reduce_max_sync()", place,
                                           [](T a, T b) { return a > b ? a : b; });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value, DIGLOT_PLACE) {
  return diglot::interpreter::reduce_lanes(mask, value, "__reduce_min_sync()", place,
                                           [](T a, T b) { return a < b ? a : b; });
}

#define DIGLOT_REDUCE(NAME, EXPRESSION)                                                          \
  inline unsigned NAME(unsigned mask, unsigned value, DIGLOT_PLACE) {                            \
    return diglot::interpreter::reduce_lanes(mask, value, #NAME "()", place,                     \
                                             [](unsigned a, unsigned b) { return EXPRESSION; }); \
  }
DIGLOT_REDUCE(__reduce_and_sync, a& b)
DIGLOT_REDUCE(__reduce_or_sync, a | b)
DIGLOT_REDUCE(__reduce_xor_sync, a ^ b)
#undef DIGLOT_REDUCE
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, DIGLOT_PLACE) {
  const auto bits = diglot::interpreter::to_bits(value);
  const auto lanes = diglot::interpreter::warp_exchange(mask, bits, "__match_any_sync()", place);
  unsigned result = 0;
  for (int lane = 0; lane < warpSize; ++lane) {
    if ((lanes.mask >> lane & 1) && lanes.values[lane] == bits) result |= 1u << lane;
  }
  return result;
}

// --- atomics, fences -----------------------------------------------------------------------------

namespace diglot::interpreter {

// What an atomic operation does with a word, and for whom.
struct Atomic {
  Ordering ordering = Ordering::kRelaxed;
  Scope scope = Scope::kDevice;
};

// Reported as one atomic access, and not as what it is made of. `writes` says of the old value
// whether another takes its place.
template <typename T, typename Update, typename Writes>
__attribute__((noinline, no_sanitize("thread"))) T atomic_update(T* address, Place place,
                                                                 Atomic how, Update update,
                                                                 Writes writes) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) {
    fail("a misaligned atomic operation", place);
  }
  const bool is_noted = begin_atomic(address, sizeof(T), Access::kAtomic, how.scope, place);
  T old, desired;
  __atomic_load(address, &old, __ATOMIC_SEQ_CST);
  do {
    desired = update(old);
  } while (!__atomic_compare_exchange(address, &old, &desired, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST));
  if (is_noted) {
    end_atomic(address, writes(old) ? Access::kAtomic : Access::kStrongRead, how.ordering,
               how.scope, place);
  }
  if (std::memcmp(&old, &desired, sizeof(T)) != 0) note_change();
  look(place);
  return old;
}
template <typename T, typename Update>
T atomic_update(T* address, Place place, Atomic how, Update update) {
  return atomic_update(address, place, how, update, [](T) { return true; });
}

template <typename T>
__attribute__((noinline, no_sanitize("thread"))) T atomic_load(const T* address, Atomic how,
                                                               Place place) {
  const bool is_noted = begin_atomic(address, sizeof(T), Access::kStrongRead, how.scope, place);
  T value;
  __atomic_load(address, &value, __ATOMIC_SEQ_CST);
  if (is_noted) end_atomic(address, Access::kStrongRead, how.ordering, how.scope, place);
  look(place);
  return value;
}

template <typename T>
__attribute__((noinline, no_sanitize("thread"))) void atomic_store(T* address, T value, Atomic how,
                                                                   Place place) {
  const bool is_noted = begin_atomic(address, sizeof(T), Access::kStrongWrite, how.scope, place);
  __atomic_store(address, &value, __ATOMIC_SEQ_CST);
  if (is_noted) end_atomic(address, Access::kStrongWrite, how.ordering, how.scope, place);
  note_change();
}

}  // namespace diglot::interpreter

// With CUDA's scopes. They order nothing by themselves.
#define DIGLOT_ATOMIC_OF(NAME, SCOPE, EXPRESSION)                                     \
  template <typename T>                                                               \
  T NAME(T* address, std::common_type_t<T> value, DIGLOT_PLACE) {                     \
    return diglot::interpreter::atomic_update(                                        \
        address, place,                                                               \
        {diglot::interpreter::Ordering::kRelaxed, diglot::interpreter::Scope::SCOPE}, \
        [=](T old) -> T { return static_cast<T>(EXPRESSION); });                      \
  }
#define DIGLOT_ATOMIC(NAME, EXPRESSION)              \
  DIGLOT_ATOMIC_OF(NAME, kDevice, EXPRESSION)        \
  DIGLOT_ATOMIC_OF(NAME##_block, kBlock, EXPRESSION) \
  DIGLOT_ATOMIC_OF(NAME##_system, kSystem, EXPRESSION)
DIGLOT_ATOMIC(atomicAdd, old + value)
DIGLOT_ATOMIC(atomicSub, old - value)
DIGLOT_ATOMIC(atomicExch, (static_cast<void>(old), value))
DIGLOT_ATOMIC(atomicMin, old < value ? old : value)
DIGLOT_ATOMIC(atomicMax, old > value ? old : value)
DIGLOT_ATOMIC(atomicAnd, old& value)
DIGLOT_ATOMIC(atomicOr, old | value)
DIGLOT_ATOMIC(atomicXor, old ^ value)
DIGLOT_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
DIGLOT_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef DIGLOT_ATOMIC
#undef DIGLOT_ATOMIC_OF

template <typename T>
T atomicCAS(T* address, std::common_type_t<T> compare, std::common_type_t<T> value, DIGLOT_PLACE) {
  return diglot::interpreter::atomic_update(
      address, place, {}, [=](T old) -> T { return old == compare ? value : old; },
      [=](T old) { return old == compare; });
}

inline void __threadfence() { diglot::interpreter::fence(diglot::interpreter::Scope::kDevice); }
inline void __threadfence_block() {
  diglot::interpreter::fence(diglot::interpreter::Scope::kBlock);
}
inline void __threadfence_system() {
  diglot::interpreter::fence(diglot::interpreter::Scope::kSystem);
}
inline void __nanosleep(unsigned, DIGLOT_PLACE) { diglot::interpreter::poll(place); }

#define __trap() ::diglot::interpreter::fail("__trap()", ::diglot::Place::here())

#include "cuda_arithmetic.h"

// --- memory --------------------------------------------------------------------------------------

#define DIGLOT_LOAD(NAME)    \
  template <typename T>      \
  T NAME(const T* address) { \
    return *address;         \
  }
#define DIGLOT_STORE(NAME)                             \
  template <typename T>                                \
  void NAME(T* address, std::common_type_t<T> value) { \
    *address = value;                                  \
  }
DIGLOT_LOAD(__ldg)
DIGLOT_LOAD(__ldca)
DIGLOT_LOAD(__ldcg)
DIGLOT_LOAD(__ldcs)
DIGLOT_STORE(__stcg)
DIGLOT_STORE(__stcs)
#undef DIGLOT_LOAD
#undef DIGLOT_STORE

// Copies of a few bytes, such as a number's, are one access, which the compiler reports. Of others
// it knows nothing (build.py).
template <typename To, typename From>
inline __attribute__((always_inline)) void* memcpy(To* to, const From* from, std::size_t bytes,
                                                   DIGLOT_PLACE) {
  if (!__builtin_constant_p(bytes) || bytes > 16 || (bytes & (bytes - 1)) != 0) {
    diglot::interpreter::touch(from, bytes, diglot::interpreter::Access::kRead, place);
    diglot::interpreter::touch(to, bytes, diglot::interpreter::Access::kWrite, place);
  }
  return __builtin_memcpy(to, from, bytes);
}
namespace std {
using ::memcpy;
}
