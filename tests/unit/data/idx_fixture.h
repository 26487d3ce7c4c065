// Makes the bytes of IDX files and writes them, plain or compressed.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep {

inline std::string idx_bytes(std::uint32_t magic, const std::vector<std::uint32_t>& dimensions,
                             const std::string& elements) {
  std::string bytes;
  const auto append = [&bytes](std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  };
  append(magic);
  for (const std::uint32_t dimension : dimensions) append(dimension);
  return bytes + elements;
}

inline void write_plain(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void write_gzip(const std::string& path, const std::string& bytes) {
  const gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  ::gzclose(file);
}

inline std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace lockstep
