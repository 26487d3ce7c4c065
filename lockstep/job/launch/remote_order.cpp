#include "lockstep/job/launch/remote_order.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kGreeting = "lockstep order 2\n";
constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);

void put_number(Bytes& out, std::uint32_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }

void put_length(Bytes& out, std::size_t length) { put_number(out, static_cast<std::uint32_t>(length)); }

void put_text(Bytes& out, std::string_view text) {
  put_length(out, text.size());
  out.append(text);
}

class OrderReader {
 public:
  explicit OrderReader(ByteView rest) : rest_(rest) {}

  std::uint32_t number() {
    std::uint32_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::size_t length() { return number(); }
  std::string text() { return std::string(take(length())); }
  bool at_end() const { return rest_.empty(); }

 private:
  ByteView take(std::size_t count) {
    if (count > rest_.size()) throw Error(ErrorKind::corrupt_data, "an order to this host is truncated");
    const ByteView taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  ByteView rest_;
};

}  // namespace

Bytes encode(const RemoteOrder& order) {
  Bytes body;
  for (const std::string& text : {order.version, order.host, order.directory, order.token, order.secret})
    put_text(body, text);
  put_number(body, order.end_limit_s);
  put_length(body, order.environment.size());
  for (const auto& [name, value] : order.environment) {
    put_text(body, name);
    put_text(body, value);
  }
  put_length(body, order.arguments.size());
  for (const std::string& argument : order.arguments) put_text(body, argument);
  if (body.size() > kMostOrderBytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the command line has {} bytes, more than can be sent to another host", body.size()));
  }
  Bytes out(kGreeting);
  put_text(out, body);
  return out;
}

std::optional<ReadOrder> decode_order(ByteView bytes) {
  const std::size_t known = std::min(bytes.size(), kGreeting.size());
  if (bytes.substr(0, known) != kGreeting.substr(0, known)) {
    throw Error(ErrorKind::corrupt_data,
                "standard input is not an order of `lockstep run --hosts`; only that command starts this one");
  }
  const std::size_t head = kGreeting.size() + kLengthBytes;
  if (bytes.size() < head) return std::nullopt;
  const std::size_t length = OrderReader(bytes.substr(kGreeting.size())).length();
  if (length > kMostOrderBytes) throw Error(ErrorKind::corrupt_data, "an order to this host is too long");
  if (bytes.size() < head + length) return std::nullopt;
  OrderReader reader(bytes.substr(head, length));
  ReadOrder read{.order = {}, .bytes = head + length};
  RemoteOrder& order = read.order;
  for (std::string* text : {&order.version, &order.host, &order.directory, &order.token, &order.secret})
    *text = reader.text();
  order.end_limit_s = reader.number();
  for (std::size_t left = reader.length(); left > 0; --left) {
    std::string name = reader.text();
    order.environment.emplace_back(std::move(name), reader.text());
  }
  for (std::size_t left = reader.length(); left > 0; --left) order.arguments.push_back(reader.text());
  if (!reader.at_end()) throw Error(ErrorKind::corrupt_data, "an order to this host has trailing bytes");
  return read;
}

std::string shell_word(std::string_view text) {
  std::string word = "'";
  for (const char each : text) {
    if (each == '\'') {
      word += "'\\''";
    } else {
      word += each;
    }
  }
  return word + "'";
}

}  // namespace lockstep::internal
