// Sums of A's rows beside a product C = A B, on tensor cores: products of A's tiles with ones. Twin
// of triton_ops/lib/products/row_sums.py. Where A is the gradient of a layer's output, transposed,
// and B its input, C is the gradient of the weight, and these sums are that of the bias.
//
// All blocks of a row of tiles load the same rows of A, so those of the first column sum them.
// wgmma multiplies at least eight columns. So a thread has four sums, two of each of its rows.
#pragma once

#include "diglot/mma/wgmma.cuh"
#include "diglot/products/tma_store.cuh"

namespace diglot {

// Of a tile whose rows nobody sums.
struct NoRowSums {
  uint64_t ones = 0;

  DIGLOT_DEVICE void begin() const {}
  template <Major kMajor>
  DIGLOT_DEVICE void add(uint64_t) const {}
  DIGLOT_DEVICE void end() const {}
  template <int kProduct, typename Visit>
  DIGLOT_DEVICE auto with(float (&product)[kProduct], Visit visit) const {
    return visit(product);
  }
};

// Of a consumer's 64 rows of a tile.
template <typename T, MmaType kType>
struct RowSums {
  static constexpr int kSums = 4;
  using Ones = SmemTile<kType, Major::kK, Swizzle::kNone, 8, depth_of(kType)>;

  uint64_t ones;  // a descriptor
  float sums[kSums] = {};

  // Writes ones to a consumer's memory, which wgmma reads. Its threads call it.
  static DIGLOT_DEVICE uint64_t make_ones(T (&tile)[kWarpgroupThreads], int barrier) {
    static_assert(Ones::kBytes == sizeof(tile));
    tile[warpgroup_thread()] = convert<T>(1.0f);
    fence_async_proxy();  // each thread's write, before wgmma reads it
    named_barrier_sync(barrier, kWarpgroupThreads);
    return Ones::descriptor(shared_address(tile), 0, 0);
  }

  DIGLOT_DEVICE void begin() { fence_accumulators(sums); }
  // Adds those of an instruction's depth of A, given its descriptor.
  template <Major kMajor>
  DIGLOT_DEVICE void add(uint64_t a) {
    wgmma<kType, kType, kMajor, Major::kK>(sums, a, ones, true);
  }
  DIGLOT_DEVICE void end() { fence_accumulators(sums); }

  // The result of visit(all), which may change the product's sums and these.
  template <int kProduct, typename Visit>
  DIGLOT_DEVICE auto with(float (&product)[kProduct], Visit visit) {
    float all[kProduct + kSums];
    const auto copy = [&](auto to_all) {
      DIGLOT_UNROLL
      for (int i = 0; i < kProduct + kSums; ++i) {
        float& one = i < kProduct ? product[i] : sums[i - kProduct];
        decltype(to_all)::value ? all[i] = one : one = all[i];
      }
    };
    copy(std::true_type{});
    const auto result = visit(all);
    copy(std::false_type{});
    return result;
  }

  // Rounds and stores the sums of rows from `row` on, of m.
  DIGLOT_DEVICE void store(T* out, int row, int m) const {
    const int thread = warpgroup_thread();
    if (accumulator_column(thread, 0) != 0) return;  // other columns have the same
    DIGLOT_UNROLL
    for (int i = 0; i < kSums; i += 2) {
      const int at = row + accumulator_row(thread, i);
      if (at < m) out[at] = convert<T>(sums[i]);
    }
  }
};

}  // namespace diglot
