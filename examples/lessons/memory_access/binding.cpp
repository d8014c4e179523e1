// The kernels for Python, by pybind11, as examples/own_kernel explains.
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

#if defined(DIGLOT_INTERPRETER)
#include "interpreter/interpreter.h"
#else
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include "access.h"

namespace {

#if defined(DIGLOT_INTERPRETER)

constexpr at::DeviceType kDevice = at::kCPU;

diglot::interpreter::Range range_of(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes()};
}

// Calls `start` with the stream, where kernels may touch the two tensors and nothing else.
template <typename Start>
void run(const at::Tensor& in, const at::Tensor& out, const Start& start) {
  const diglot::interpreter::Arguments scope({range_of(in), range_of(out)});
  start(nullptr);
}

#else

constexpr at::DeviceType kDevice = at::kCUDA;

template <typename Start>
void run(const at::Tensor& in, const at::Tensor&, const Start& start) {
  const c10::cuda::CUDAGuard guard(in.device());
  start(c10::cuda::getCurrentCUDAStream());
}

#endif

void check(const at::Tensor& in) {
  TORCH_CHECK_VALUE(in.device().type() == kDevice && in.is_contiguous() && in.numel() > 0 &&
                        in.scalar_type() == at::kFloat,
                    "in must be contiguous float32 on a ", kDevice, " device, and not empty");
}

at::Tensor copy(const at::Tensor& in, int64_t stride) {
  check(in);
  TORCH_CHECK_VALUE(stride > 0 && in.numel() % stride == 0, "stride must divide the size of in");
  const at::Tensor out = at::empty_like(in);
  run(in, out, [&](void* stream) {
    copy_strided(in.numel(), stride, in.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                 stream);
  });
  return out;
}

at::Tensor transposed(const at::Tensor& in, Tile tile) {
  check(in);
  TORCH_CHECK_VALUE(in.dim() == 2 && in.size(0) % 32 == 0 && in.size(1) % 32 == 0,
                    "in must have two sizes, multiples of 32");
  const at::Tensor out = at::empty_like(in).view({in.size(1), in.size(0)});
  run(in, out, [&](void* stream) {
    transpose(tile, in.size(0), in.size(1), in.const_data_ptr<float>(),
              out.mutable_data_ptr<float>(), stream);
  });
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::enum_<Tile>(m, "Tile")
      .value("NONE", Tile::kNone)
      .value("PLAIN", Tile::kPlain)
      .value("PADDED", Tile::kPadded);
  m.def("copy_strided", &copy, "in's elements, read `stride` apart", pybind11::arg("in"),
        pybind11::arg("stride"));
  m.def("transpose", &transposed, "in.T, row-major", pybind11::arg("in"), pybind11::arg("tile"));
}
