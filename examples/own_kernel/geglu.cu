// out = gelu(x) * y, the gate of a GEGLU feed-forward block (Shazeer, "GLU variants improve
// transformer", 2020, arXiv:2002.05202), with one pass over memory instead of two.
//
// Parts of diglot's: the mathematics (gelu.cuh), the conversions (types.cuh), the kernel, which
// walks the arrays by 16-byte accesses (elementwise.cuh), and the launch (launch.cuh). Twin of
// geglu_triton.py. Without a GPU, diglot.interpreter compiles this file as it is.
#include "geglu.h"

#include "diglot/elementwise.cuh"
#include "diglot/gelu.cuh"
#include "diglot/launch/launch.h"
#include "diglot/types.cuh"

namespace {

using diglot::Approximate;
using diglot::Precision;

template <typename T>
using Shape = diglot::FlatShape<4, diglot::kAccessBytes / sizeof(T)>;  // 4 accesses of 16 bytes

template <typename T>
struct Geglu {
  DIGLOT_DEVICE T operator()(T x, T y) const {
    constexpr Precision kPrecision = sizeof(T) == 2 ? Precision::kHalf : Precision::kFloat;
    const float activated = diglot::gelu<Approximate::kTanh, kPrecision>(diglot::convert<float>(x));
    return diglot::convert<T>(activated * diglot::convert<float>(y));
  }
};

template <typename T>
void launch_geglu(int64_t n, const void* x, const void* y, void* out, void* stream) {
  constexpr int64_t kBlockElements =
      diglot::kElementwiseThreads * Shape<T>::kAccesses * Shape<T>::kElements;
  diglot::launch<diglot::elementwise_flat<Geglu<T>, Shape<T>, T, T, T>>(
      diglot::blocks_for(n, kBlockElements), diglot::kElementwiseThreads,
      static_cast<cudaStream_t>(stream), n, /*head=*/0, static_cast<const T*>(x),
      static_cast<const T*>(y), Geglu<T>{}, static_cast<T*>(out));
}

}  // namespace

void geglu_forward(Type type, std::int64_t n, const void* x, const void* y, void* out,
                   void* stream) {
  switch (type) {
    case Type::kFloat32: return launch_geglu<float>(n, x, y, out, stream);
    case Type::kFloat16: return launch_geglu<diglot::float16>(n, x, y, out, stream);
    case Type::kBFloat16: return launch_geglu<diglot::bfloat16>(n, x, y, out, stream);
  }
}
