#pragma once

// The new names: this one goes in the next release.
#include "diglot/norm/backward_resident.cuh"
#include "diglot/norm/backward_streaming.cuh"
#include "diglot/norm/group_sums.cuh"
