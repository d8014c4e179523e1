#pragma once

// The new name: this one goes in the next release.
#include "diglot/reduce/warp_block.cuh"
