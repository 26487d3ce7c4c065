#include "lockstep/formats/zip_headers.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::internal {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kTooLarge = 0xffffffff;  // for 4 bytes; this value itself says that zip64 has the number
constexpr std::uint64_t kTooMany = 0xffff;
constexpr std::uint16_t kFlags = 0x0808;  // names are UTF-8; a descriptor with the CRC-32 follows the data
constexpr std::uint16_t kDate = 0x0021;   // the first day that zip knows
constexpr std::size_t kLocalBytes = 30;
constexpr std::size_t kZip64Bytes = 20;   // extra field of two sizes
constexpr std::size_t kPaddingBytes = 4;  // extra field of PyTorch's that fills up
constexpr std::uint16_t kPaddingId = 0x4246;

template <class Number>
void put(std::string& out, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) out.push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

std::uint16_t version_for(bool is_zip64) { return is_zip64 ? 45 : 20; }

std::uint32_t capped(std::uint64_t number) { return static_cast<std::uint32_t>(std::min(number, kTooLarge)); }

}  // namespace

std::string local_header(const ZipRecord& record) {
  const bool is_zip64 = record.bytes >= kTooLarge;
  std::string extra;
  if (is_zip64) {
    put<std::uint16_t>(extra, 1);
    put<std::uint16_t>(extra, kZip64Bytes - 4);
    put<std::uint64_t>(extra, 0);  // which follow, like the CRC-32
    put<std::uint64_t>(extra, 0);
  }
  const std::uint64_t unpadded = record.begin + kLocalBytes + record.name.size() + extra.size() + kPaddingBytes;
  const std::uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  put<std::uint16_t>(extra, kPaddingId);
  put<std::uint16_t>(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header;
  put<std::uint32_t>(header, 0x04034b50);
  put<std::uint16_t>(header, version_for(is_zip64));
  put<std::uint16_t>(header, kFlags);
  put<std::uint16_t>(header, 0);  // not compressed
  put<std::uint16_t>(header, 0);  // the time
  put<std::uint16_t>(header, kDate);
  put<std::uint32_t>(header, 0);  // the CRC-32, which follows
  put<std::uint32_t>(header, is_zip64 ? kTooLarge : 0);
  put<std::uint32_t>(header, is_zip64 ? kTooLarge : 0);
  put<std::uint16_t>(header, static_cast<std::uint16_t>(record.name.size()));
  put<std::uint16_t>(header, static_cast<std::uint16_t>(extra.size()));
  return header + record.name + extra;
}

std::string data_descriptor(const ZipRecord& record) {
  std::string descriptor;
  put<std::uint32_t>(descriptor, 0x08074b50);
  put<std::uint32_t>(descriptor, record.crc);
  for (int i = 0; i < 2; ++i) {
    if (record.bytes >= kTooLarge) {
      put<std::uint64_t>(descriptor, record.bytes);
    } else {
      put<std::uint32_t>(descriptor, static_cast<std::uint32_t>(record.bytes));
    }
  }
  return descriptor;
}

std::string directory_entry(const ZipRecord& record) {
  std::string numbers;  // that do not fit into 4 bytes
  for (const std::uint64_t number : {record.bytes, record.bytes, record.begin}) {
    if (number >= kTooLarge) put<std::uint64_t>(numbers, number);
  }
  std::string header;
  put<std::uint32_t>(header, 0x02014b50);
  put<std::uint16_t>(header, version_for(!numbers.empty()));
  put<std::uint16_t>(header, version_for(!numbers.empty()));
  put<std::uint16_t>(header, kFlags);
  put<std::uint16_t>(header, 0);
  put<std::uint16_t>(header, 0);
  put<std::uint16_t>(header, kDate);
  put<std::uint32_t>(header, record.crc);
  put<std::uint32_t>(header, capped(record.bytes));
  put<std::uint32_t>(header, capped(record.bytes));
  put<std::uint16_t>(header, static_cast<std::uint16_t>(record.name.size()));
  put<std::uint16_t>(header, static_cast<std::uint16_t>(numbers.empty() ? 0 : numbers.size() + 4));
  header.append(10, '\0');  // no comment, the first disk, no attributes
  put<std::uint32_t>(header, capped(record.begin));
  header += record.name;
  if (!numbers.empty()) {
    put<std::uint16_t>(header, 1);
    put<std::uint16_t>(header, static_cast<std::uint16_t>(numbers.size()));
  }
  return header + numbers;
}

std::string directory_end(std::uint64_t count, std::uint64_t directory, std::uint64_t directory_bytes) {
  std::string end;
  if (count >= kTooMany || directory >= kTooLarge || directory_bytes >= kTooLarge) {
    put<std::uint32_t>(end, 0x06064b50);
    put<std::uint64_t>(end, 44);  // what follows of this record
    put<std::uint16_t>(end, version_for(true));
    put<std::uint16_t>(end, version_for(true));
    put<std::uint64_t>(end, 0);  // disks
    put<std::uint64_t>(end, count);
    put<std::uint64_t>(end, count);
    put<std::uint64_t>(end, directory_bytes);
    put<std::uint64_t>(end, directory);
    put<std::uint32_t>(end, 0x07064b50);
    put<std::uint32_t>(end, 0);
    put<std::uint64_t>(end, directory + directory_bytes);
    put<std::uint32_t>(end, 1);
  }
  put<std::uint32_t>(end, 0x06054b50);
  put<std::uint32_t>(end, 0);
  put<std::uint16_t>(end, static_cast<std::uint16_t>(std::min(count, kTooMany)));
  put<std::uint16_t>(end, static_cast<std::uint16_t>(std::min(count, kTooMany)));
  put<std::uint32_t>(end, capped(directory_bytes));
  put<std::uint32_t>(end, capped(directory));
  put<std::uint16_t>(end, 0);
  return end;
}

}  // namespace lockstep::internal
