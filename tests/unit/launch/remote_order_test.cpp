#include "lockstep/job/launch/remote_order.h"

#include <string>

#include "lockstep/job/launch/ssh_hosts.h"
#include "tests/support/expect_error.h"

namespace remote_order_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

RemoteOrder order() {
  return {.version = "1.2.3",
          .host = "b",
          .directory = "/home/me/a folder",
          .token = std::string("\0\xff\n", 3),
          .secret = "5ecret",
          .end_limit_s = 71,
          .environment = {{"A", "b=c"}, {"EMPTY", ""}},
          .arguments = {"run", "--", "./train", "it's \"quoted\" $HOME\n", ""}};
}

}  // namespace

TEST_CASE("an order arrives as it was, and what follows it is left") {
  const Bytes bytes = encode(order());
  const auto read = decode_order(bytes + "\x0f");
  REQUIRE(read.has_value());
  CHECK(read->bytes == bytes.size());
  CHECK(read->order.version == "1.2.3");
  CHECK(read->order.host == "b");
  CHECK(read->order.directory == "/home/me/a folder");
  CHECK(read->order.token == order().token);
  CHECK(read->order.secret == "5ecret");
  CHECK(read->order.end_limit_s == 71);
  CHECK(read->order.environment == order().environment);
  CHECK(read->order.arguments == order().arguments);
}

TEST_CASE("an order is complete only with its last byte") {
  const Bytes bytes = encode(order());
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK_FALSE(decode_order(bytes.substr(0, size)).has_value());
}

TEST_CASE("what is no order is refused at its first byte") {
  CHECK_ERROR(error_of([] { decode_order("hello"); }), ErrorKind::corrupt_data, "lockstep run --hosts");
  CHECK_ERROR(error_of([] { decode_order("x"); }), ErrorKind::corrupt_data, "lockstep run --hosts");
  Bytes bytes = encode(order());
  const std::size_t head = bytes.find('\n') + 1;
  for (std::size_t i = 0; i < 4; ++i) bytes[head + i] = '\xff';
  CHECK_ERROR(error_of([&] { decode_order(bytes); }), ErrorKind::corrupt_data, "too long");
  bytes = encode(order());
  for (std::size_t i = 4; i < 8; ++i) bytes[head + i] = '\x7f';  // the version's length
  CHECK_ERROR(error_of([&] { decode_order(bytes); }), ErrorKind::corrupt_data, "truncated");
}

TEST_CASE("any text is one word of a shell") {
  CHECK(shell_word("/usr/bin/lockstep") == "'/usr/bin/lockstep'");
  CHECK(shell_word("it's $HOME") == "'it'\\''s $HOME'");
  CHECK(shell_word("") == "''");
}

TEST_CASE("this host has several names") {
  CHECK(is_this_host("localhost"));
  CHECK(is_this_host("127.0.0.1"));
  CHECK_FALSE(is_this_host("no-such-host"));
}

}  // namespace remote_order_test
