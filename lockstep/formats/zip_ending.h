// How many entries the end of a zip archive claims to have. libzip takes memory for as many before it looks at the
// first of them, so a claim is compared with the size of the file before libzip sees it. Blocks for disk I/O.
// Error{internal} if the file cannot be read.
#pragma once

#include <cstdint>

#include "lockstep/formats/zip_archive.h"

namespace lockstep::internal {

// The highest claim of all that may be the archive's end; 0 if nothing may.
std::uint64_t claimed_zip_entries(const FilePart& part);

}  // namespace lockstep::internal
