// fmt: Debian's library; where a file sees torch, torch's own copy, whose functions adapters/torch_format.cpp compiles.
// Their symbols carry different inline namespaces, so both may be linked into one program. Include from .cpp files only.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
