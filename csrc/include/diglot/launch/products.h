// Host side of a product: its operands as matrices and a batch of them. Twin of
// triton_ops/launch/products.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "diglot/launch/plan.h"
#include "diglot/products/epilogue.cuh"

namespace diglot {

inline Activation activation_of(std::string_view name) {
  if (name == "none") return Activation::kNone;
  if (name == "relu") return Activation::kRelu;
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  throw std::invalid_argument("activation must be 'none', 'relu', 'silu', 'gelu' or 'gelu_tanh'");
}

// What follows a product's sums, as products/epilogue.cuh says. `bias` is (n). `input` and `before`
// have C's sizes, and `before` has its strides. Factors that are absent are 1.
struct Around {
  const Operand* bias = nullptr;
  const Operand* input = nullptr;
  const Operand* before = nullptr;
  Activation activation = Activation::kNone;
  bool is_slope = false;
  std::optional<Real> alpha, beta;
};

// The layout of a batch in C, A, B and the input.
using ProductBatches = Layout<4>;

// The operands of C = A B, and what follows it. A is (..., m, k), B (..., k, n) and C (..., m, n).
// The dimensions before the last two, the batch's, broadcast to those of C.
struct Product {
  using Batches = ProductBatches;
  static constexpr int kC = 0, kA = 1, kB = 2, kInput = 3;  // arrays of `batches`

  const Operand *a, *b, *c;
  Around around;
  bool is_tf32 = false;  // of float32: whether tensor cores may ignore 13 bits of operands
  int64_t m, n, k;
  MatrixStrides of_a, of_b, of_c, of_input;
  Batches batches;
  // Whether a row's bits must not depend on M. Plans are then made for many rows.
  bool is_batch_invariant = false;
  const Operand* sums_of_rows = nullptr;  // (m), gets the sums of A's rows; null: nobody wants them

  Product(const Operand& a, const Operand& b, const Around& around, const Operand& c)
      : Product({&a, &b, &c}, around, {c, a, b, input_of(around, c)}) {}

  // Whether C is float32 while A and B have 16 bits.
  bool is_wide() const { return c->dtype == DType::kFloat32 && size_of(a->dtype) == 2; }
  int64_t planned_m() const { return is_batch_invariant ? int64_t{1} << 16 : m; }

  // Whether nothing but the bias is summed, or nothing at all is written.
  bool is_empty() const { return m == 0 || n == 0 || batches.numel == 0; }
  int64_t bias_stride() const {
    return around.bias == nullptr ? 0 : around.bias->strides[around.bias->rank - 1];
  }

  // What follows the sums, at a launch.
  template <typename T>
  auto epilogue() const {
    using Value = compute_t<T>;
    const auto factor = [](const std::optional<Real>& number) {
      return [number](const Arguments& now) {
        return number ? static_cast<Value>((*number)(now)) : Value{1};
      };
    };
    return
        [m = m, n = n, alpha = factor(around.alpha), beta = factor(around.beta),
         bias = address_of<const T>(around.bias), bias_stride = bias_stride(),
         input = address_of<const T>(around.input), of_input = of_input,
         activation = around.activation, is_slope = around.is_slope,
         before = address_of<T>(around.before), c = c->as<T>(), of_c = of_c](const Arguments& now) {
          return Epilogue<T>{m,           n,          alpha(now), beta(now),  bias(now),
                             bias_stride, input(now), of_input,   activation, is_slope,
                             before(now), c(now),     of_c};
        };
  }

 private:
  struct Given {
    const Operand *a, *b, *c;
  };
  // The dimensions of C, A, B and the input before the matrices, without folded ones.
  struct Left {
    Operand c, a, b, input;
  };

  Product(const Given& given, const Around& around, Left left)
      : a(given.a),
        b(given.b),
        c(given.c),
        around(around),
        m(size(*c, 2)),
        n(size(*c, 1)),
        k(size(*a, 1)),
        of_a(strides_of(*a)),
        of_b(strides_of(*b)),
        of_c(strides_of(*c)),
        of_input(strides_of(left.input)),
        batches(folded(left)) {
    const Operand* const before = around.before;
    if (before != nullptr && (before->rank != c->rank ||
                              !std::equal(c->strides, c->strides + c->rank, before->strides))) {
      throw std::invalid_argument("before must have the strides of out");
    }
  }

  // An input that is absent takes no steps.
  static Operand input_of(const Around& around, const Operand& c) {
    if (around.input != nullptr) return *around.input;
    Operand none = c;
    std::fill_n(none.strides, none.rank, 0);
    return none;
  }
  static int64_t size(const Operand& operand, int from_end) {
    return operand.sizes[operand.rank - from_end];
  }
  static MatrixStrides strides_of(const Operand& operand) {
    return {operand.strides[operand.rank - 2], operand.strides[operand.rank - 1]};
  }

  // Rows of all matrices of a batch that share B are rows of one matrix, where the others step
  // through them as through one.
  Batches folded(Left& left) {
    for (Operand* const operand : {&left.c, &left.a, &left.b, &left.input}) operand->rank -= 2;
    for (; left.c.rank > 0; drop_last(left)) {
      const int64_t count = left.c.sizes[left.c.rank - 1];
      if (count == 1) continue;
      const int64_t step_a = last_stride(left.a), step_c = last_stride(left.c);
      const int64_t step_input = last_stride(left.input);
      if (last_stride(left.b) != 0) break;
      if (m == 1) {
        of_a.row = step_a, of_c.row = step_c, of_input.row = step_input;
      } else if (step_a != m * of_a.row || step_c != m * of_c.row ||
                 step_input != m * of_input.row) {
        break;
      }
      m *= count;
    }
    const Operand* const operands[] = {&left.c, &left.a, &left.b, &left.input};
    return Batches(operands);
  }
  // The step from a matrix to the next, 0 if it is the same one.
  static int64_t last_stride(const Operand& operand) {
    const int last = operand.rank - 1;
    return last < 0 || operand.sizes[last] == 1 ? 0 : operand.strides[last];
  }
  static void drop_last(Left& left) {
    for (Operand* const operand : {&left.c, &left.a, &left.b, &left.input}) {
      operand->rank = std::max(operand->rank - 1, 0);
    }
  }
};

// Takes the numbers that measured best for such products, which depend on M. `layout` names how the
// operands lie.
inline void choose_numbers(Planner& planner, const Product& product, std::string layout) {
  if (product.is_batch_invariant) return;
  if (product.is_wide()) layout += ", wide";
  if (product.sums_of_rows != nullptr) layout += ", row sums";
  planner.choose(std::move(layout), {product.m, product.n, product.k, product.batches.numel},
                 {product.a});
}

// The same, of a precision of float32 products: "ieee" or "tf32".
inline Product with_precision(Product product, std::string_view precision) {
  product.is_tf32 = precision == "tf32" && product.a->dtype == DType::kFloat32;
  return product;
}

// Plans a product on tensor cores; false if its kernels cannot take it.
using TensorCorePlanner = bool (*)(Planner& planner, const Product& product);
// Null where the build has no such kernels: their file is compiled for sm_90a alone.
inline TensorCorePlanner& tensor_core_planner() {
  static TensorCorePlanner planner = nullptr;
  return planner;
}

// Plans wide products. Their kernels are in another file for sm_90a.
inline TensorCorePlanner& wide_planner() {
  static TensorCorePlanner planner = nullptr;
  return planner;
}

// Plans products that also sum A's rows, where numbers ask for it, or a model.
inline TensorCorePlanner& row_sums_planner() {
  static TensorCorePlanner planner = nullptr;
  return planner;
}

// Nanoseconds of a product on tensor cores, by the planner's model. Null as above.
using TensorCoreModel = double (*)(Planner& planner, const Product& product);
inline TensorCoreModel& tensor_core_model() {
  static TensorCoreModel model = nullptr;
  return model;
}

// Plans C = A B, and what follows it. csrc/ops/matmul.cu has it, with the kernels.
void plan_product(Planner& planner, const Product& product);

}  // namespace diglot
