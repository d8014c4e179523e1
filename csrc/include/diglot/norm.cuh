#pragma once

// The new names: this one goes in the next release.
#include "diglot/norm/forward.cuh"
