// The function that binding.cpp calls.
#pragma once

// C = A B, row-major bfloat16 matrices of m x k, k x n and m x n, all sizes above 0, n and k
// multiples of 8. They begin at multiples of 16 bytes. `stream` is a cudaStream_t of the current
// device.
void product(const void* a, const void* b, void* c, int m, int n, int k, void* stream);
