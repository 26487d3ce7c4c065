#include "lockstep/comm/store/store_protocol.h"

#include <random>

#include "lockstep/comm/net/wire.h"
#include "tests/support/expect_error.h"

namespace store_protocol_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

StoreRequest full_request() {
  StoreRequest request;
  request.op = StoreOp::compare_set;
  request.client = 0x1122334455667788;
  request.id = 9;
  request.ended = 7;
  request.age = std::chrono::seconds(2);
  request.timeout = std::chrono::seconds(3);
  request.keys = {"the key"};
  request.value = Bytes("\0value", 6);
  request.expected = "expected";
  request.delta = -4;
  return request;
}

}  // namespace

TEST_CASE("requests and replies survive the wire") {
  const StoreRequest request = full_request();
  const StoreRequest back = decode_store_request(encode(request));
  CHECK(back.op == request.op);
  CHECK(back.client == request.client);
  CHECK(back.id == request.id);
  CHECK(back.ended == request.ended);
  CHECK(back.age == request.age);
  CHECK(back.timeout == request.timeout);
  CHECK(back.keys == request.keys);
  CHECK(back.value == request.value);
  CHECK(back.expected == request.expected);
  CHECK(back.delta == request.delta);
  const StoreReply reply = decode_store_reply(encode(
      {.id = 3, .status = StoreStatus::error, .kind = ErrorKind::corrupt_data, .value = "why", .keys = {"a", "b"}}));
  CHECK(reply.id == 3);
  CHECK(reply.status == StoreStatus::error);
  CHECK(reply.kind == ErrorKind::corrupt_data);
  CHECK(reply.value == "why");
  CHECK(reply.keys == std::vector<std::string>{"a", "b"});
}

TEST_CASE("every shortened or lengthened message is corrupt") {
  const Bytes whole = encode(full_request());
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    CHECK(error_of([&] { decode_store_request(whole.substr(0, cut)); }).kind() == ErrorKind::corrupt_data);
  }
  CHECK_ERROR(error_of([&] { decode_store_request(whole + "x"); }), ErrorKind::corrupt_data, "1 trailing bytes");
}

TEST_CASE("unknown operations, wrong key counts and huge counts are corrupt") {
  Bytes bad = encode(full_request());
  bad[0] = 99;
  CHECK_ERROR(error_of([&] { decode_store_request(bad); }), ErrorKind::corrupt_data, "the operation is 99");
  StoreRequest two = full_request();
  two.keys = {"a", "b"};
  CHECK(error_of([&] { decode_store_request(encode(two)); }).kind() == ErrorKind::corrupt_data);
  Bytes huge = encode(full_request());
  for (std::size_t i = 49; i < 53; ++i) huge[i] = '\xff';  // the number of keys
  CHECK_ERROR(error_of([&] { decode_store_request(huge); }), ErrorKind::corrupt_data,
              "the number of keys is 4294967295");
}

TEST_CASE("random damage is decoded or refused, never worse") {
  std::mt19937 random(1);
  const Bytes request = encode(full_request());
  const Bytes reply = encode(StoreReply{.id = 1, .status = {}, .kind = {}, .value = "value", .keys = {"k"}});
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes message = i % 2 == 0 ? request : reply;
    for (unsigned flips = random() % 4 + 1; flips > 0; --flips) {
      message[random() % message.size()] = static_cast<char>(random());
    }
    message.resize(message.size() - (random() % 3 == 0 ? random() % message.size() : 0));
    try {
      i % 2 == 0 ? (void)decode_store_request(message) : (void)decode_store_reply(message);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::corrupt_data);
      ++refused;
    }
  }
  CHECK(refused > 5000);
}

}  // namespace store_protocol_test
