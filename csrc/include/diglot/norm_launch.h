#pragma once

// The new name: this one goes in the next release.
#include "diglot/launch/norm_forward.h"
