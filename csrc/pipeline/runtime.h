// The ring's streams and events: a GPU's, or simulated ones where kernels are interpreted. Twin of
// python/diglot/pipeline/runtime.py.
#pragma once

#if defined(DIGLOT_INTERPRETER)
#include "pipeline/simulated_runtime.h"
#else
#include "pipeline/gpu_runtime.h"
#endif
