// fmt: Debian's library; where a file sees torch, torch's own copy, which comes as headers only. Their symbols carry
// different inline namespaces, so both may be linked into one program. Include from .cpp files only.
#pragma once

#if __has_include(<ATen/ATen.h>)
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
#include <fmt/ranges.h>
