// The JSON of a safetensors header, and nothing else that JSON could say: every key must be one that the format has,
// once, with a value of the right type. Text -> entries, unchecked against each other. Pure. Error{corrupt_data}.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/safetensors/safetensors_header.h"

namespace lockstep::internal {

inline constexpr std::string_view kMetadataKey = "__metadata__";

SafetensorsHeader parse_safetensors_json(ByteView json);

// Bytes in the longest string or number of a JSON text. The parser copies a token several times, so it must be bounded.
std::size_t longest_token(ByteView json);

// A name from a file as an error text may show it: in quotes, without control characters, not endless.
std::string shown(std::string_view name);

}  // namespace lockstep::internal
