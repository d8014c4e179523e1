// Host side of a product: its operands as matrices and a batch of them. Twin of
// triton_ops/launch/products.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "diglot/launch/plan.h"
#include "diglot/products/epilogue.cuh"

namespace diglot {

// The operands of C = A B + bias. A is (..., m, k), B (..., k, n), C (..., m, n) and the bias (n).
// The dimensions before the last two, the batch's, broadcast to those of C.
struct Product {
  const Operand *a, *b, *bias, *c;
  bool is_tf32 = false;  // of float32: whether tensor cores may ignore 13 bits of operands
  int64_t m, n, k;
  MatrixStrides of_a, of_b, of_c;
  Layout<3> batches;  // in C, A and B
  // Whether a row's bits must not depend on M. Plans are then made for many rows.
  bool is_batch_invariant = false;

  Product(const Operand& a, const Operand& b, const Operand* bias, const Operand& c)
      : Product({&a, &b, bias, &c}, {c, a, b}) {}

  int64_t planned_m() const { return is_batch_invariant ? int64_t{1} << 16 : m; }

  // Whether nothing but the bias is summed, or nothing at all is written.
  bool is_empty() const { return m == 0 || n == 0 || batches.numel == 0; }
  int64_t bias_stride() const { return bias == nullptr ? 0 : bias->strides[bias->rank - 1]; }

  // What follows the sums, at a launch.
  template <typename T>
  auto epilogue() const {
    return [m = m, n = n, bias = address_of<const T>(bias), stride = bias_stride(), c = c->as<T>(),
            of_c = of_c](const Arguments& now) {
      return Epilogue<T>{m, n, bias(now), stride, c(now), of_c};
    };
  }

 private:
  struct Given {
    const Operand *a, *b, *bias, *c;
  };
  // The dimensions of C, A and B before the matrices, without folded ones.
  struct Batches {
    Operand c, a, b;
  };

  Product(const Given& given, Batches left)
      : a(given.a),
        b(given.b),
        bias(given.bias),
        c(given.c),
        m(size(*c, 2)),
        n(size(*c, 1)),
        k(size(*a, 1)),
        of_a(strides_of(*a)),
        of_b(strides_of(*b)),
        of_c(strides_of(*c)),
        batches(folded(left)) {}

  static int64_t size(const Operand& operand, int from_end) {
    return operand.sizes[operand.rank - from_end];
  }
  static MatrixStrides strides_of(const Operand& operand) {
    return {operand.strides[operand.rank - 2], operand.strides[operand.rank - 1]};
  }

  // Rows of all matrices of a batch that share B are rows of one matrix, where A and C step through
  // them as through one.
  Layout<3> folded(Batches& left) {
    for (Operand* const operand : {&left.c, &left.a, &left.b}) operand->rank -= 2;
    for (; left.c.rank > 0; drop_last(left)) {
      const int64_t count = left.c.sizes[left.c.rank - 1];
      if (count == 1) continue;
      const int64_t step_a = last_stride(left.a), step_c = last_stride(left.c);
      if (last_stride(left.b) != 0) break;
      if (m == 1) {
        of_a.row = step_a, of_c.row = step_c;
      } else if (step_a != m * of_a.row || step_c != m * of_c.row) {
        break;
      }
      m *= count;
    }
    const Operand* const operands[] = {&left.c, &left.a, &left.b};
    return Layout<3>(operands);
  }
  // The step from a matrix to the next, 0 if it is the same one.
  static int64_t last_stride(const Operand& operand) {
    const int last = operand.rank - 1;
    return last < 0 || operand.sizes[last] == 1 ? 0 : operand.strides[last];
  }
  static void drop_last(Batches& left) {
    for (Operand* const operand : {&left.c, &left.a, &left.b}) {
      operand->rank = std::max(operand->rank - 1, 0);
    }
  }
};

// Takes the numbers that measured best for such products, which depend on M. `layout` names how the
// operands lie.
inline void choose_numbers(Planner& planner, const Product& product, std::string layout) {
  if (product.is_batch_invariant) return;
  planner.choose(std::move(layout), {product.m, product.n, product.k, product.batches.numel},
                 {product.a});
}

// The same, of a precision of float32 products: "ieee" or "tf32".
inline Product with_precision(Product product, std::string_view precision) {
  product.is_tf32 = precision == "tf32" && product.c->dtype == DType::kFloat32;
  return product;
}

// Plans a product on tensor cores; false if its kernels cannot take it.
using TensorCorePlanner = bool (*)(Planner& planner, const Product& product);
// Null where the build has no such kernels: their file is compiled for sm_90a alone.
inline TensorCorePlanner& tensor_core_planner() {
  static TensorCorePlanner planner = nullptr;
  return planner;
}

// Plans C = A B + bias. csrc/ops/matmul.cu has it, with the kernels.
void plan_product(Planner& planner, const Product& product);

}  // namespace diglot
