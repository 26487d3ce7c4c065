// The header of a safetensors file: names, types, shapes and places of its tensors, and a map of strings. tensors ->
// header -> file -> header -> tensors. Pure functions; memory grows with the text, not with the numbers in it. The
// layout is that of the safetensors package: 8 bytes of length (little-endian), JSON padded with spaces, data.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep {

// A file begins with the length of its header.
inline constexpr std::size_t kHeaderLengthBytes = 8;

struct SafetensorsLimits {
  static constexpr std::uint64_t kHeaderBytes = 16 << 20;
  static constexpr std::size_t kEntries = 150'000;     // tensors and metadata strings together: what 64 MiB can hold
  static constexpr std::size_t kTokenBytes = 1 << 20;  // of any string in the JSON text
  static constexpr std::size_t kTensorNameBytes = 1024;
  static constexpr std::size_t kMetadataNameBytes = 1100;  // a tensor's name with something before it
  static constexpr std::size_t kDimensions = 64;
};

struct SafetensorsType {
  std::string_view name;  // "F32"
  std::size_t element_bytes;
  // For a type that the format lacks: the type of the numbers that make up an element. Several numbers are another
  // dimension of the tensor in the file, and the metadata string named kTypeKey and the tensor's name gives the actual
  // type. Only the text of the header has this form; a TensorEntry has the actual type and shape.
  std::string_view stored_as = {};
};
inline constexpr std::string_view kTypeKey = "lockstep.type.";  // then the name of a tensor
// The types that may be stored.
inline constexpr std::array<SafetensorsType, 27> kSafetensorsTypes = {{{"BOOL", 1},
                                                                       {"U8", 1},
                                                                       {"I8", 1},
                                                                       {"F8_E4M3", 1},
                                                                       {"F8_E5M2", 1},
                                                                       {"F8_E4M3FNUZ", 1},
                                                                       {"F8_E5M2FNUZ", 1},
                                                                       {"F8_E8M0", 1},
                                                                       {"U16", 2},
                                                                       {"I16", 2},
                                                                       {"F16", 2},
                                                                       {"BF16", 2},
                                                                       {"U32", 4},
                                                                       {"I32", 4},
                                                                       {"F32", 4},
                                                                       {"U64", 8},
                                                                       {"I64", 8},
                                                                       {"F64", 8},
                                                                       {"C32", 4, "F16"},
                                                                       {"C64", 8, "F32"},
                                                                       {"C128", 16, "F64"},
                                                                       {"F4_E2M1_X2", 1, "U8"},
                                                                       {"BITS8", 1, "U8"},
                                                                       {"BITS16", 2, "U16"},
                                                                       {"BITS1X8", 1, "U8"},
                                                                       {"BITS2X4", 1, "U8"},
                                                                       {"BITS4X2", 1, "U8"}}};
// 0 for a type that is not in the table.
std::size_t safetensors_element_size(std::string_view dtype);

struct TensorEntry {
  std::string name = {};
  std::string dtype = {};
  std::vector<std::int64_t> shape = {};
  std::uint64_t begin = 0;  // bytes, counted from the end of the header
  std::uint64_t end = 0;
};

// For messages: "F32 [10, 512], bytes 4096 to 24576 of the data".
std::string describe(const TensorEntry& entry);

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors = {};  // in the order of their data
  std::map<std::string, std::string> metadata = {};
};

// Sorts the tensors so that each is aligned to its element size, sets their positions, and checks what parse_header()
// would check. Error{invalid_argument} if they cannot be stored.
void lay_out(SafetensorsHeader& header);

// Length prefix and JSON. REQUIRES: lay_out() was called.
std::string serialise_header(const SafetensorsHeader& header);

// The value of the length prefix. Error{corrupt_data} if it exceeds the limit or the file.
std::uint64_t parse_header_length(ByteView first_eight_bytes, std::uint64_t file_bytes);

// `json` is the header without its length prefix, `data_bytes` the size of the rest of the file. Error{corrupt_data}
// unless the header is well-formed and its tensors cover the data exactly: no gap, no overlap, nothing left over.
SafetensorsHeader parse_header(ByteView json, std::uint64_t data_bytes);

}  // namespace lockstep
