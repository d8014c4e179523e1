// out = gelu(x) * y, the gate of a GEGLU feed-forward block (Shazeer, "GLU variants improve
// transformer", 2020, arXiv:2002.05202), with one pass over memory instead of two.
//
// What is diglot's: the mathematics (gelu.cuh), the conversions (types.cuh), the walk over the
// arrays by 16-byte accesses (elementwise.cuh) and the launch (launch.cuh). The rest is what any
// extension of PyTorch consists of. Twin of geglu_triton.py.
//
// torch/extension.h would include all of PyTorch, and take three times as long to compile.
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/utils/pybind.h>

#include "diglot/elementwise.cuh"
#include "diglot/gelu.cuh"
#include "diglot/launch.cuh"
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
__global__ void __launch_bounds__(diglot::kElementwiseThreads)
    geglu_kernel(int64_t n, const T* x, const T* y, T* out) {
  diglot::flat_map<Shape<T>>(n, /*head=*/0, Geglu<T>{}, out, x, y);
}

template <typename T>
void launch_geglu(const at::Tensor& x, const at::Tensor& y, at::Tensor& out) {
  constexpr int64_t kBlockElements =
      diglot::kElementwiseThreads * Shape<T>::kAccesses * Shape<T>::kElements;
  diglot::launch<geglu_kernel<T>>(
      diglot::blocks_for(x.numel(), kBlockElements), diglot::kElementwiseThreads,
      c10::cuda::getCurrentCUDAStream(), x.numel(), static_cast<const T*>(x.const_data_ptr()),
      static_cast<const T*>(y.const_data_ptr()), static_cast<T*>(out.mutable_data_ptr()));
}

// Row-major and starting at a multiple of 16 bytes, as new tensors are: what the kernel takes.
at::Tensor prepare(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  const bool is_aligned =
      diglot::elements_to_alignment(static_cast<const char*>(dense.const_data_ptr())) == 0;
  return is_aligned ? dense : dense.clone();
}

at::Tensor geglu(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK_VALUE(x.is_cuda() && y.device() == x.device(),
                    "geglu: x and y must be on one CUDA device");
  TORCH_CHECK_VALUE(x.sizes() == y.sizes(), "geglu: x and y must have one shape");
  TORCH_CHECK_TYPE(x.scalar_type() == y.scalar_type(), "geglu: x and y must have one dtype");
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor first = prepare(x);
  const at::Tensor second = prepare(y);
  at::Tensor out = at::empty_like(first);
  if (out.numel() == 0) return out;
  switch (x.scalar_type()) {
    case at::kFloat: launch_geglu<float>(first, second, out); break;
    case at::kHalf: launch_geglu<diglot::float16>(first, second, out); break;
    case at::kBFloat16: launch_geglu<diglot::bfloat16>(first, second, out); break;
    default: TORCH_CHECK_TYPE(false, "geglu: x must be float32, float16 or bfloat16");
  }
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("geglu", &geglu, "gelu(x) * y, with the tanh form of GELU", py::arg("x"), py::arg("y"));
}
