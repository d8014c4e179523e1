// Host side of a product of 8-bit floats with scales. Twin of a part of triton_ops/scaled_mm.py.
#pragma once

#include "diglot/float8.cuh"
#include "diglot/launch/dispatch.h"
#include "diglot/launch/products.h"
#include "diglot/products/scales.cuh"

namespace diglot {

// The scales of an operand's rows or columns. `side` is the dimension of these.
struct OperandScales {
  const Operand* operand;
  int64_t side_stride = 0, depth_stride = 0;
  int shift = 0;
  bool has_blocks = false;  // whether they are of blocks along K

  OperandScales(const Operand& given, int64_t rows, int side) : operand(&given) {
    if (given.numel == 1) return;
    const bool has_steps = given.sizes[1 - side] != 1;
    side_stride = given.strides[side];
    depth_stride = has_steps ? given.strides[1 - side] : 0;
    shift = given.sizes[side] == rows ? 0 : kScaledShift;
    has_blocks = has_steps || shift != 0;
  }

  // For a kernel, at a launch.
  auto argument() const {
    return [data = operand->as<const float>(), side = side_stride, depth = depth_stride,
            shift = shift](const Arguments& now) { return Scales{data(now), side, depth, shift}; };
  }
};

struct ScaledProduct {
  Product product;
  OperandScales scale_a, scale_b;
  Accumulation accumulation;

  // `given` has all but the scales.
  ScaledProduct(const Product& given, const Operand& of_a, const Operand& of_b, bool is_fast)
      : product(given),
        scale_a(of_a, given.m, 0),
        scale_b(of_b, given.n, 1),
        accumulation(scale_a.has_blocks || scale_b.has_blocks ? Accumulation::kBlocks
                     : is_fast                                ? Accumulation::kFast
                                                              : Accumulation::kExact) {}
};

// Calls function(Type<T>{}) with the type of C.
template <typename Function>
void dispatch_result(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat16: return call_for<float16>(function);
    case DType::kBFloat16: return call_for<bfloat16>(function);
    default: return call_for<float>(function);
  }
}

// Plans a product on tensor cores; false if its kernels cannot take it.
using ScaledPlanner = bool (*)(Planner& planner, const ScaledProduct& scaled);
// Null where the build has no such kernels: their file is compiled for sm_90a alone.
inline ScaledPlanner& scaled_planner() {
  static ScaledPlanner planner = nullptr;
  return planner;
}

}  // namespace diglot
