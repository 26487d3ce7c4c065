// fmt as a header-only library: torch's copy where a file sees torch, Debian's elsewhere. Their symbols carry different
// inline namespaces, so both may be linked into one program. Include from .cpp files only.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
#include <fmt/ranges.h>
