// What torch-free tests need that are compiled without optimisation, parsed once for a tree.
#pragma once

#include <doctest/doctest.h>

#include "../../cmake/precompiled_std.h"
