// The records of a store file. change <-> record <-> file. Pure: the file is a function that reads. A file is
// "LSSTORE", a byte for the version of the format, a record with a LogHeader, then one record a change. A record is a
// frame (net/framing.h).
// A process that is killed while it writes leaves a record that is cut short, since a record is one write. So a record
// that is whole and wrong, or a wrong length, is damage: Error{corrupt_data} that names the file and the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/store/key_map.h"

namespace lockstep::internal {

inline constexpr ByteView kLogMagic("LSSTORE", 7);
inline constexpr std::uint64_t kLogStart = kLogMagic.size() + 1;  // of the first record
inline constexpr char kLogVersion = '2';

// REQUIRES: the payload is one of those below.
Bytes make_log_record(ByteView payload);

// What a file holds from an offset on; fewer bytes than `count` only at its end.
using ReadLog = std::function<Bytes(std::uint64_t offset, std::size_t count)>;

struct LogFile {
  ReadLog read;
  std::uint64_t size = 0;
  std::string_view path;  // for errors
};

// The payload of the record at an offset; nothing if the file ends before it does.
std::optional<Bytes> read_log_record(const LogFile& file, std::uint64_t offset);

struct LogHeader {
  std::string version = {};  // of the format; the other fields are set only for this version
  std::uint32_t pid = 0;     // the process that created the file
  std::string boot_id = {};
  std::string run_id = {};
  std::uint64_t end = 0;  // offset of the first change
};
// Magic, version and first record; `end` does not matter.
Bytes encode(const LogHeader& header);
// Nothing if the file has no complete header.
std::optional<LogHeader> read_log_header(const LogFile& file);

// Payloads. replay() applies one of them to the map.
Bytes encode_set(std::string_view key, ByteView value);
Bytes encode_remove(std::string_view key);
void replay(ByteView payload, KeyMap& map);

}  // namespace lockstep::internal
