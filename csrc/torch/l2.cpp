// L2 persistence: the CUDA runtime's calls that diglot.l2 uses, as functions of Python. diglot.l2
// decides which to make.
#include "torch/launcher.h"

namespace {

using namespace diglot;
using namespace diglot::torch_binding;

template <typename Handle>
Handle handle_of(int64_t value) {
  return reinterpret_cast<Handle>(static_cast<intptr_t>(value));
}

template <cudaDeviceAttr kAttribute>
int64_t attribute(int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, kAttribute, device), "asking for a device attribute");
  return value;
}

int64_t set_aside(int) {
  std::size_t bytes = 0;
  const cudaError_t status = cudaDeviceGetLimit(&bytes, cudaLimitPersistingL2CacheSize);
  if (status == cudaErrorUnsupportedLimit) return 0;  // an old device
  check(status, "cudaDeviceGetLimit");
  return static_cast<int64_t>(bytes);
}

int64_t set_set_aside(int, int64_t bytes) {
  check(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, static_cast<std::size_t>(bytes)),
        "setting a part of the L2 cache aside");
  return 0;
}

// Zero bytes clear the stream's window.
int64_t set_window(int, int64_t stream, int64_t address, int64_t bytes, float hit_ratio) {
  cudaLaunchAttributeValue value{};
  if (bytes > 0) {
    value.accessPolicyWindow.base_ptr = handle_of<void*>(address);
    value.accessPolicyWindow.num_bytes = static_cast<std::size_t>(bytes);
    value.accessPolicyWindow.hitRatio = hit_ratio;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    // Streaming lines would be the first to leave the cache.
    value.accessPolicyWindow.missProp = cudaAccessPropertyNormal;
  }
  check(cudaStreamSetAttribute(handle_of<cudaStream_t>(stream),
                               cudaLaunchAttributeAccessPolicyWindow, &value),
        "setting a stream's access-policy window");
  return 0;
}

// Records an event after the stream's work so far. await() destroys it.
int64_t record_event(int, int64_t stream) {
  cudaEvent_t event = nullptr;
  // The waiting thread sleeps, so that it costs no core.
  check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  const cudaError_t status = cudaEventRecord(event, handle_of<cudaStream_t>(stream));
  if (status != cudaSuccess) cudaEventDestroy(event);
  check(status, "cudaEventRecord");
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(event));
}

int64_t await(int, int64_t event) {
  const cudaError_t status = cudaEventSynchronize(handle_of<cudaEvent_t>(event));
  cudaEventDestroy(handle_of<cudaEvent_t>(event));
  check(status, "cudaEventSynchronize");
  return 0;
}

int64_t reset_lines(int device) {
  // cudaCtxResetPersistingL2Cache alone does not make the device's context current to a new thread.
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaCtxResetPersistingL2Cache(), "cudaCtxResetPersistingL2Cache");
  return 0;
}

// A Python function of numbers, the first a device index. That device is current during the call.
template <auto kFunction>
struct Function;
template <typename... Numbers, int64_t (*kFunction)(int, Numbers...)>
struct Function<kFunction> {
  static PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    constexpr int kCount = 1 + sizeof...(Numbers);
    if (count != kCount) {
      PyErr_Format(PyExc_TypeError, "expected %d arguments, got %d", kCount,
                   static_cast<int>(count));
      return nullptr;
    }
    try {
      PythonReader reader(arguments);
      // Braces order the reads from left to right.
      const std::tuple<int, Numbers...> numbers{read<int>(reader), read<Numbers>(reader)...};
      return PyLong_FromLong(run(numbers));
    } catch (...) {
      return raise_current_exception();
    }
  }

 private:
  template <typename T>
  static T read(PythonReader& reader) {
    if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(reader.read<double>());
    } else {
      return static_cast<T>(reader.read<int64_t>());
    }
  }
  static int64_t run(const std::tuple<int, Numbers...>& numbers) {
    const WithoutGil gil;
    const DeviceGuard guard(std::get<0>(numbers));
    const RelaxedCaptureScope scope;
    return std::apply(kFunction, numbers);
  }
};

const bool registered = [] {
  for (const PythonFunction& function : std::initializer_list<PythonFunction>{
           {"l2_size", &Function<attribute<cudaDevAttrL2CacheSize>>::call},
           {"l2_largest_set_aside",
            &Function<attribute<cudaDevAttrMaxPersistingL2CacheSize>>::call},
           {"l2_largest_window", &Function<attribute<cudaDevAttrMaxAccessPolicyWindowSize>>::call},
           {"l2_is_under_mps", &Function<attribute<cudaDevAttrMpsEnabled>>::call},
           {"l2_set_aside", &Function<set_aside>::call},
           {"l2_set_set_aside", &Function<set_set_aside>::call},
           {"l2_set_window", &Function<set_window>::call},
           {"l2_record", &Function<record_event>::call},
           {"l2_await", &Function<await>::call},
           {"l2_reset_lines", &Function<reset_lines>::call},
       }) {
    python_functions().push_back(function);
  }
  return true;
}();

}  // namespace
