// The headers of a zip archive and its entries, as PyTorch writes them: no compression, data at multiples of 64, the
// CRC-32 after the data, zip64 for numbers that do not fit into 4 bytes. Pure functions.
//   local_header() data data_descriptor() ... directory_entry() ... directory_end()
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::internal {

struct ZipRecord {
  std::string name;
  std::uint64_t bytes;
  std::uint64_t begin;  // of its header
  std::uint32_t crc;
};

// Of a record without CRC-32.
std::string local_header(const ZipRecord& record);
std::string data_descriptor(const ZipRecord& record);
std::string directory_entry(const ZipRecord& record);
// Of a directory that begins at byte `directory`.
std::string directory_end(std::uint64_t count, std::uint64_t directory, std::uint64_t directory_bytes);

}  // namespace lockstep::internal
