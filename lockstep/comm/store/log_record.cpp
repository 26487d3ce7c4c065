#include "lockstep/comm/store/log_record.h"

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/wire.h"
#include "lockstep/comm/store/store.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMaxPayloadBytes = 1 + 4 + kMaxStoreKeyBytes + 4 + kMaxStoreValueBytes;
constexpr char kOldestVersion = '\n';  // what version 1 wrote there

enum class Change : std::uint8_t { set = 1, remove = 2 };

}  // namespace

Bytes make_log_record(ByteView payload) { return frame(payload, kMaxPayloadBytes); }

std::optional<Bytes> read_log_record(const LogFile& file, std::uint64_t offset) {
  const std::string where =
      fmt::format("the store file {} is damaged at offset {}; remove it and start the job again", file.path, offset);
  const Bytes bytes = file.read(offset, kFrameHeaderBytes);
  if (bytes.size() < kFrameHeaderBytes) return std::nullopt;
  const FrameHead head = decode_frame_head(bytes, kMaxPayloadBytes, where);
  const std::uint64_t begin = offset + kFrameHeaderBytes;
  if (begin > file.size || head.payload_bytes > file.size - begin) return std::nullopt;
  Bytes payload = file.read(begin, head.payload_bytes);
  if (payload.size() < head.payload_bytes) return std::nullopt;
  check_frame_payload(head, payload, where);
  return payload;
}

Bytes encode(const LogHeader& header) {
  Bytes payload;
  put_u32(payload, header.pid);
  put_bytes(payload, header.boot_id);
  put_bytes(payload, header.run_id);
  return Bytes(kLogMagic) + kLogVersion + make_log_record(payload);
}

std::optional<LogHeader> read_log_header(const LogFile& file) {
  const Bytes begin = file.read(0, kLogStart);
  if (begin.size() < kLogStart || !begin.starts_with(kLogMagic)) return std::nullopt;
  LogHeader header;
  header.version = begin.back() == kOldestVersion ? "1" : quote_key(begin.substr(kLogMagic.size()));
  if (begin.back() != kLogVersion) return header;
  header.version = kLogVersion;
  const auto payload = read_log_record(file, kLogStart);
  if (!payload) return std::nullopt;
  const std::string what = fmt::format("the header of the store file {}", file.path);
  WireReader reader(*payload, what);
  header.pid = reader.u32();
  header.boot_id = reader.bytes();
  header.run_id = reader.bytes();
  reader.expect_end();
  header.end = kLogStart + kFrameHeaderBytes + payload->size();
  return header;
}

Bytes encode_set(std::string_view key, ByteView value) {
  Bytes payload;
  payload.reserve(1 + 4 + key.size() + 4 + value.size());
  put_u8(payload, static_cast<std::uint8_t>(Change::set));
  put_bytes(payload, key);
  put_bytes(payload, value);
  return payload;
}

Bytes encode_remove(std::string_view key) {
  Bytes payload;
  put_u8(payload, static_cast<std::uint8_t>(Change::remove));
  put_bytes(payload, key);
  return payload;
}

void replay(ByteView payload, KeyMap& map) {
  WireReader reader(payload, "a store record");
  const Change change = checked_enum(reader.u8(), Change::set, Change::remove, "change", reader.origin());
  const ByteView key = reader.bytes();
  checked_between<std::size_t>(key.size(), 1, kMaxStoreKeyBytes, "length of a key", reader.origin());
  const ByteView value = change == Change::set ? reader.bytes() : ByteView();
  checked_size(value.size(), kMaxStoreValueBytes, "length of a value", reader.origin());
  reader.expect_end();
  try {
    if (change == Change::set) {
      map.set(key, value);
    } else {
      map.remove(key);
    }
  } catch (const Error& error) {  // no process would have written what does not fit into a store
    throw_corrupt(reader.origin(), error.what());
  }
}

}  // namespace lockstep::internal
