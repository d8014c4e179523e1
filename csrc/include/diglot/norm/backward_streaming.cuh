// Derivatives of norms of streaming rows, which no team or cluster can hold. Twin of
// triton_ops/lib/norm/backward_streaming.py.
#pragma once

#include "diglot/norm/team_sum.cuh"

namespace diglot {

// The elements of a row that a block's threads access at once.
template <typename Shape, typename T>
struct NormBatch {
  static constexpr int kElements = Shape::template kElements<T>;
  static constexpr int kSize = kNormThreads * Shape::template kColumns<T>;

  int64_t first;
  int count;  // elements that exist

  DIGLOT_DEVICE NormBatch(int number, int64_t size) : first(int64_t{number} * kSize) {
    count = size - first < kSize ? static_cast<int>(size - first) : kSize;
  }

  DIGLOT_DEVICE static int element(int a, int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return Shape::kIsWide ? (a * kNormThreads + thread) * kElements + i
                          : (a * kElements + i) * kNormThreads + thread;
  }
  // An access to an array of any type, by read(address). Absent elements are zeros.
  template <typename U, typename Read>
  DIGLOT_DEVICE Vector<U, kElements> load(const U* from, int a, Read read) const {
    Vector<U, kElements> result = {};
    constexpr int kStep = Shape::kIsWide ? kAccessBytes / static_cast<int>(sizeof(U)) : 1;
    using Part = std::conditional_t<Shape::kIsWide, uint4, U>;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; i += kStep) {
      if (element(a, i) >= count) continue;
      const Part part = read(reinterpret_cast<const Part*>(from + first + element(a, i)));
      memcpy(&result[i], &part, sizeof(part));
    }
    return result;
  }
  // Stores an access by write(address, elements).
  template <typename U, typename Write>
  DIGLOT_DEVICE void store(U* output, int a, const Vector<U, kElements>& values,
                           Write write) const {
    constexpr int kStep = Shape::kIsWide ? kAccessBytes / static_cast<int>(sizeof(U)) : 1;
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; i += kStep) {
      if (element(a, i) >= count) continue;
      Vector<U, kStep> part;
      memcpy(&part, &values[i], sizeof(part));
      write(output + first + element(a, i), part);
    }
  }
};

// A cluster takes one row at a time. Each block reads its part of the row twice: forwards for the
// sums, and backwards for the derivatives, because the L2 cache still has the end. The sums over
// rows are in shared memory, or in global memory if there is no room. A thread has the same columns
// of all rows.
template <typename Shape, bool kIsCentered, typename T, typename Weight>
DIGLOT_DEVICE void norm_backward_streaming(const NormStridedRows& rows,
                                           const NormGradients<T>& arrays, const Weight* weights) {
  using Compute = compute_t<T>;
  using Row = NormRow<Compute, kIsCentered>;
  using RowSums = NormSums<Compute, kIsCentered>;
  using Batch = NormBatch<Shape, T>;
  constexpr int kAccesses = Shape::kAccesses, kElements = Batch::kElements;
  constexpr int kFields = kIsCentered ? 2 : 1;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = rows.group();
  const int64_t first = rows.block() * rows.share;
  const int64_t size = rows.n - first < rows.share ? rows.n - first : rows.share;
  const int batches = static_cast<int>((size + Batch::kSize - 1) / Batch::kSize);
  if (weights != nullptr) weights = as_it_is(weights + first);

  // -0 changes no derivative that it is added to, not even the sign of a zero.
  Vector<T, kElements> no_addends;
  DIGLOT_UNROLL
  for (int i = 0; i < kElements; ++i) no_addends[i] = convert<T>(Compute(-0.0));
  // Rows bypass the L1 cache, which serves the weights.
  const auto read_cached = [](const auto* address) { return *address; };
  const auto read_past_l1 = [](const auto* address) { return __ldcg(address); };
  const auto write = [](auto* address, const auto& part) { store_vector(address, part); };
  const auto write_sums = [](auto* address, const auto& part) { store_anywhere(address, part); };
  const auto load = [&](const T* from, const Batch& batch, uint4(&held)[kAccesses]) {
    DIGLOT_UNROLL
    for (int a = 0; a < kAccesses; ++a) {
      // Packed here, not at its use: 16-bit elements would take a register each.
      held[a] = pack(unpack<T>(pack(batch.load(from, a, read_past_l1))));
    }
  };
  // Prefetches part of a row to the L2 cache, a line per thread, so that memory is busy while a
  // row's sums are found.
  const auto prefetch_l2 = [&](const T* from, int64_t begin) {
    constexpr int kLine = 128 / static_cast<int>(sizeof(T));
    const int64_t element = (begin < 0 ? 0 : begin) + thread * kLine;
    if (element < size) prefetch(from + element);
  };
  constexpr int kPrefetched = kNormThreads * 128 / static_cast<int>(sizeof(T));
  // grad * weight for an access.
  const auto scaled = [&](const Vector<Compute, kElements>& grads, const Batch& batch, int a) {
    Vector<Compute, kElements> result = grads;
    if (weights == nullptr) return result;
    const auto scale = batch.load(weights, a, read_cached);
    DIGLOT_UNROLL
    for (int i = 0; i < kElements; ++i) result[i] *= convert<Compute>(scale[i]);
    return result;
  };

  // Where the sums for weight and bias go, and where they are added up. Null: not requested.
  const auto stored = [&](int field) {
    Compute* const sums = field == 0 ? arrays.weight_sums : arrays.bias_sums;
    return sums == nullptr ? nullptr : sums + group * rows.order.pitch + first;
  };
  Compute* added[kFields];
  extern __shared__ uint4 shared_sums[];
  Compute* room = reinterpret_cast<Compute*>(shared_sums);
  int fields = 0;
  DIGLOT_UNROLL
  for (int field = 0; field < kFields; ++field) {
    added[field] = stored(field);
    if (added[field] == nullptr) continue;
    if (fields++ < rows.smem_fields) added[field] = room, room += rows.share;
    DIGLOT_NO_UNROLL
    for (int64_t i = thread; i < size; i += kNormThreads) {
      added[field][i] = rows.accumulates ? stored(field)[i] : Compute(0);
    }
  }
  __syncthreads();

  const auto statistics = [&](int64_t number) {
    return number < rows.count ? Row::load(arrays, rows.offsets(number).array[kStatistics]) : Row{};
  };
  auto next = statistics(group);
  TeamSum<RowSums> team_sum(rows);
  DIGLOT_NO_UNROLL
  for (int64_t number = group; number < rows.count; number += rows.groups) {
    const auto starts = rows.offsets(number);
    const int64_t later = number + rows.groups;
    const T* const inputs = arrays.input + starts.array[kInput] + first;
    const T* const grads = arrays.grad_output + starts.array[kGradOutput] + first;
    const T* const addends = arrays.grad_sum + starts.array[kGradSum] + first;
    T* const output = arrays.grad_input + starts.array[kGradInput] + first;
    const Row row = next.ready();
    next = statistics(later);
    if (arrays.grad_sum != nullptr) prefetch_l2(addends, size - kPrefetched);
    uint4 held_inputs[kAccesses], held_grads[kAccesses];
    RowSums sums = RowSums::none();
    DIGLOT_NO_UNROLL
    for (int b = 0; b < batches; ++b) {
      const Batch batch(b, size);
      load(inputs, batch, held_inputs);
      load(grads, batch, held_grads);
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const auto x = unpack_computed<T>(held_inputs[a]), grad = unpack_computed<T>(held_grads[a]);
        const auto h = scaled(grad, batch, a);
        Vector<Compute, kElements> totals[kFields] = {};
        DIGLOT_UNROLL
        for (int field = 0; field < kFields; ++field) {
          if (added[field] != nullptr) totals[field] = batch.load(added[field], a, read_cached);
        }
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) {
          const Compute normalized = row.normalized(x[i]);
          sums.values[0] = fma(h[i], normalized, sums.values[0]);
          totals[0][i] = fma(grad[i], normalized, totals[0][i]);
          if constexpr (kIsCentered) sums.values[1] += h[i], totals[1][i] += grad[i];
        }
        DIGLOT_UNROLL
        for (int field = 0; field < kFields; ++field) {
          if (added[field] != nullptr) batch.store(added[field], a, totals[field], write_sums);
        }
      }
    }
    if (later < rows.count) {
      const auto from = rows.offsets(later);
      prefetch_l2(arrays.input + from.array[kInput] + first, 0);
      prefetch_l2(arrays.grad_output + from.array[kGradOutput] + first, 0);
    }

    const auto map = row.map(team_sum(sums), arrays.share);
    DIGLOT_NO_UNROLL
    for (int b = batches - 1; b >= 0; --b) {
      const Batch batch(b, size);
      uint4 held_addends[kAccesses];
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) held_addends[a] = pack(no_addends);
      if (arrays.grad_sum != nullptr) load(addends, batch, held_addends);
      if (b < batches - 1) {  // the last batch is still in registers
        load(inputs, batch, held_inputs);
        load(grads, batch, held_grads);
      }
      DIGLOT_UNROLL
      for (int a = 0; a < kAccesses; ++a) {
        const auto x = unpack_computed<T>(held_inputs[a]);
        const auto h = scaled(unpack_computed<T>(held_grads[a]), batch, a);
        const auto addend = unpack_computed<T>(held_addends[a]);
        Vector<T, kElements> values;
        DIGLOT_UNROLL
        for (int i = 0; i < kElements; ++i) values[i] = convert<T>(map(h[i], x[i]) + addend[i]);
        batch.store(output, a, values, write);
      }
    }
  }

  __syncthreads();
  DIGLOT_UNROLL
  for (int field = 0; field < kFields; ++field) {
    if (added[field] == stored(field)) continue;
    for (int64_t i = thread; i < size; i += kNormThreads) stored(field)[i] = added[field][i];
  }
  if (rows.spans_cluster())
    cluster_sync();  // in the interpreter others may still read this block's mail
}

template <typename Shape, typename T, bool kIsCentered>
DIGLOT_DEVICE void norm_backward_streaming(const NormStridedRows& rows,
                                           const NormGradients<T>& arrays) {
  arrays.with_weights([&](const auto* weights) {
    norm_backward_streaming<Shape, kIsCentered>(rows, arrays, weights);
  });
}

}  // namespace diglot
