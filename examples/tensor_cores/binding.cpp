// product(a, b) for Python, by pybind11.
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/interpreter.h"
#else
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include "product.h"

namespace {

#if defined(DIGLOT_INTERPRETER)
constexpr at::DeviceType kDevice = at::kCPU;

diglot::interpreter::Range range_of(const at::Tensor& tensor, bool is_writable) {
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes(), is_writable};
}
#else
constexpr at::DeviceType kDevice = at::kCUDA;
#endif

void check(const char* name, const at::Tensor& matrix) {
  TORCH_CHECK_VALUE(matrix.device().type() == kDevice, "product: ", name, " must be on a ", kDevice,
                    " device");
  TORCH_CHECK_TYPE(matrix.scalar_type() == at::kBFloat16, "product: ", name, " must be bfloat16");
  TORCH_CHECK_VALUE(matrix.dim() == 2 && matrix.is_contiguous(), "product: ", name,
                    " must be a contiguous matrix");
  TORCH_CHECK_VALUE(matrix.size(1) % 8 == 0, "product: the columns of ", name,
                    " must be a multiple of 8, so that rows begin at multiples of 16 bytes");
  TORCH_CHECK_VALUE(reinterpret_cast<std::uintptr_t>(matrix.const_data_ptr()) % 16 == 0,
                    "product: ", name, " must begin at a multiple of 16 bytes");
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) {
  check("a", a);
  check("b", b);
  TORCH_CHECK_VALUE(a.size(1) == b.size(0), "product: a has ", a.size(1), " columns, and b ",
                    b.size(0), " rows");
  TORCH_CHECK_VALUE(a.numel() > 0 && b.numel() > 0, "product: a and b must not be empty");
  const at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
#if defined(DIGLOT_INTERPRETER)
  // The kernel may touch these three, and write to c alone.
  const diglot::interpreter::Arguments scope(
      {range_of(a, false), range_of(b, false), range_of(c, true)});
  void* const stream = nullptr;
#else
  const c10::cuda::CUDAGuard guard(a.device());
  void* const stream = c10::cuda::getCurrentCUDAStream();
#endif
  product(a.const_data_ptr(), b.const_data_ptr(), c.mutable_data_ptr(), static_cast<int>(a.size(0)),
          static_cast<int>(b.size(1)), static_cast<int>(a.size(1)), stream);
  return c;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("product", &multiply, "a @ b, of bfloat16 matrices", py::arg("a"), py::arg("b"));
}
