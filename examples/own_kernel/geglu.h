// The function that binding.cpp calls.
#pragma once

#include <cstdint>

enum class Type { kFloat32, kFloat16, kBFloat16 };

// out[i] = gelu(x[i]) * y[i] for i < n. All three begin at a multiple of 16 bytes. `stream` is a
// cudaStream_t of the current device.
void geglu_forward(Type type, std::int64_t n, const void* x, const void* y, void* out,
                   void* stream);
