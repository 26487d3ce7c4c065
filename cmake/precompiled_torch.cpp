// A source for the target that owns the precompiled header.
#include "precompiled_torch.h"
