// Many tensors in one launch, cut into chunks. A table on the device says where each chunk lies.
// Twin of triton_ops/lib/chunks.py; python/diglot/backends/chunk_table.py makes the table.
//
// A chunk begins at a multiple of 16 bytes, or is shorter than that. So it consists of whole
// 16-byte accesses and a tail of fewer elements than an access has.
#pragma once

#include <type_traits>

#include "diglot/types.cuh"
#include "diglot/vector_access.cuh"

namespace diglot {

struct Chunk {
  void* data = nullptr;
  int count = 0;  // of elements
  DType dtype = DType::kFloat32;
  bool is_repeated = false;  // an earlier chunk is the same memory
};

// Row `index` of a table of int64 [rows, 2]: an address, and a packed word. From its low bits on,
// the word has 32 bits of count, 8 of the element type, and 1 of is_repeated. Beyond the table the
// chunk is empty.
DIGLOT_DEVICE Chunk read_chunk(const int64_t* table, int64_t rows, int64_t index) {
  if (index < 0 || index >= rows) return {};
  const auto row = load_vector<int64_t, 2>(table + 2 * index);
  return {reinterpret_cast<void*>(row[0]), static_cast<int>(row[1]),
          static_cast<DType>(row[1] >> 32 & 0xff), (row[1] >> 40 & 1) != 0};
}

// Calls function(data) with the chunk's data as a pointer to its floating type. A double is
// possible only where Compute is double.
template <typename Compute, typename Function>
DIGLOT_DEVICE auto with_data(const Chunk& chunk, Function function) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(chunk.data));  // a loaded address does not tell the compiler
#endif
  switch (chunk.dtype) {
    case DType::kFloat16: return function(static_cast<float16*>(chunk.data));
    case DType::kBFloat16: return function(static_cast<bfloat16*>(chunk.data));
    case DType::kFloat64:
      if constexpr (std::is_same_v<Compute, double>) {
        return function(static_cast<double*>(chunk.data));
      }
    default: return function(static_cast<float*>(chunk.data));
  }
}

// Walks this thread's part of a chunk, in a block of kThreads. Calls accesses(first, number) for
// `number` accesses (a type), kThreads accesses apart, from element `first` on, and
// element(address) for an element of the tail. A thread takes kAccesses accesses at once while that
// many remain.
template <int kThreads, int kAccesses, typename T, typename Accesses, typename Element>
DIGLOT_DEVICE void walk_chunk(T* data, int count, Accesses accesses, Element element) {
  constexpr int kElements = kAccessBytes / sizeof(T);
  const int vectors = count / kElements;
  int vector = static_cast<int>(threadIdx.x);
  for (; vector + (kAccesses - 1) * kThreads < vectors; vector += kAccesses * kThreads) {
    accesses(data + vector * kElements, std::integral_constant<int, kAccesses>{});
  }
  for (; vector < vectors; vector += kThreads) {
    accesses(data + vector * kElements, std::integral_constant<int, 1>{});
  }
  const int tail = vectors * kElements + static_cast<int>(threadIdx.x);
  if (tail < count) element(data + tail);
}

}  // namespace diglot
