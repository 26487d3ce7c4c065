// A source for the target that owns the precompiled header.
#include "cmake/precompiled_torch.h"
