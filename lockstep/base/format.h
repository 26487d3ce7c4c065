// fmt: Debian's library; where a file sees torch, torch's own copy, which adapters/torch_format.cpp compiles. Their
// symbols carry different inline namespaces, so both may be linked into one program. Include from .cpp files only.
#pragma once

#if defined(LOCKSTEP_COMPILE_FMT)  // in that source alone
#include <fmt/format-inl.h>
#endif
#include <fmt/format.h>
#include <fmt/ranges.h>
