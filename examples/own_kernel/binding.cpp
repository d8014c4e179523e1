// geglu(x, y) for Python, by pybind11, as in any extension of PyTorch.
//
// torch/extension.h would include all of PyTorch, and take three times as long to compile.
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/interpreter.h"
#else
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include "geglu.h"

namespace {

#if defined(DIGLOT_INTERPRETER)
constexpr at::DeviceType kDevice = at::kCPU;

diglot::interpreter::Range range_of(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes()};
}
#else
constexpr at::DeviceType kDevice = at::kCUDA;
#endif

// Row-major and starting at a multiple of 16 bytes, as new tensors are: what the kernel takes.
at::Tensor prepare(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(dense.const_data_ptr()) % 16 == 0;
  return is_aligned ? dense : dense.clone();
}

Type type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return Type::kFloat32;
    case at::kHalf: return Type::kFloat16;
    case at::kBFloat16: return Type::kBFloat16;
    default: TORCH_CHECK_TYPE(false, "geglu: x must be float32, float16 or bfloat16");
  }
}

at::Tensor geglu(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK_VALUE(x.device().type() == kDevice && y.device() == x.device(),
                    "geglu: x and y must be on one ", kDevice, " device");
  TORCH_CHECK_VALUE(x.sizes() == y.sizes(), "geglu: x and y must have one shape");
  TORCH_CHECK_TYPE(x.scalar_type() == y.scalar_type(), "geglu: x and y must have one dtype");
  const Type type = type_of(x);
  const at::Tensor first = prepare(x);
  const at::Tensor second = prepare(y);
  const at::Tensor out = at::empty_like(first);
  if (out.numel() == 0) return out;
#if defined(DIGLOT_INTERPRETER)
  // The kernel may touch these three, and nothing else.
  const diglot::interpreter::Arguments scope({range_of(first), range_of(second), range_of(out)});
  void* const stream = nullptr;
#else
  const c10::cuda::CUDAGuard guard(x.device());
  void* const stream = c10::cuda::getCurrentCUDAStream();
#endif
  geglu_forward(type, x.numel(), first.const_data_ptr(), second.const_data_ptr(),
                out.mutable_data_ptr(), stream);
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("geglu", &geglu, "gelu(x) * y, with the tanh form of GELU", py::arg("x"), py::arg("y"));
}
