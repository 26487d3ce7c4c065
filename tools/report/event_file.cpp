#include "tools/report/event_file.h"

#include <bit>
#include <cctype>
#include <cmath>
#include <ctime>
#include <limits>
#include <span>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/format.h"

namespace lockstep::tools {

using namespace internal;

namespace {

template <class Unsigned>
void append_little_endian(std::string& bytes, Unsigned number) {
  for (std::size_t i = 0; i < sizeof number; ++i) bytes.push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

std::uint32_t masked_sum(std::string_view bytes) {
  const std::uint32_t sum = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(sum, 15) + 0xa282ead8u;
}

// Protobuf's wire types, and the messages' field numbers.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };

void append_varint(std::string& bytes, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<char>((number & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(number));
}

void append_key(std::string& bytes, std::uint64_t field, Wire wire) {
  append_varint(bytes, field << 3 | static_cast<std::uint64_t>(wire));
}

void append_bytes(std::string& bytes, std::uint64_t field, std::string_view content) {
  append_key(bytes, field, Wire::length);
  append_varint(bytes, content.size());
  bytes += content;
}

// Event: wall_time 1, step 2, file_version 3, summary 5. Summary: value 1. Value: tag 1, simple_value 2.
std::string event_at(double wall_seconds) {
  std::string event;
  append_key(event, 1, Wire::fixed64);
  append_little_endian(event, std::bit_cast<std::uint64_t>(wall_seconds));
  return event;
}

}  // namespace

EventFile::EventFile() {
  std::string event;
  append_bytes(event, 3, "brain.Event:2");
  add_record(event);
}

void EventFile::add_scalar(std::string_view tag, std::int64_t step, double value, double wall_seconds) {
  if (!std::isfinite(value) || std::abs(value) > std::numeric_limits<float>::max()) return;
  std::string scalar, summary, event = event_at(wall_seconds);
  append_bytes(scalar, 1, tag);
  append_key(scalar, 2, Wire::fixed32);
  append_little_endian(scalar, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  append_bytes(summary, 1, scalar);
  append_key(event, 2, Wire::varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, 5, summary);
  add_record(event);
}

void EventFile::add_record(std::string_view event) {
  std::string length;
  append_little_endian(length, static_cast<std::uint64_t>(event.size()));
  bytes_ += length;
  append_little_endian(bytes_, masked_sum(length));
  bytes_ += event;
  append_little_endian(bytes_, masked_sum(event));
}

std::string event_file_of(const RunRecord& run) {
  EventFile file;
  const double started = run.starts.empty() ? kUnknown : seconds_of_iso_time(run.starts.front().started);
  const double wall = std::isfinite(started) ? started : 0;
  for (const EpochLine& epoch : run.epochs) {
    const std::int64_t step = epoch.step.value_or(epoch.epoch);
    for (const auto& [name, value] : epoch.metrics) file.add_scalar(name, step, value, wall);
  }
  for (const StepsLine& line : run.steps) {
    for (const RankTimes& times : line.ranks) {
      for (std::size_t part = 0; part < kStepFields.size(); ++part) {
        file.add_scalar(fmt::format("{}/rank {}", kStepFields[part], times.rank), line.step, times.seconds[part], wall);
      }
    }
  }
  return file.bytes();
}

double seconds_of_iso_time(const std::string& text) {
  std::tm time{}, zone{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (rest == nullptr) return kUnknown;
  if (*rest == '.') {
    do ++rest;
    while (std::isdigit(static_cast<unsigned char>(*rest)) != 0);
  }
  rest = ::strptime(rest, "%z", &zone);
  if (rest == nullptr || *rest != '\0') return kUnknown;
  return static_cast<double>(::timegm(&time)) - static_cast<double>(zone.tm_gmtoff);
}

}  // namespace lockstep::tools
