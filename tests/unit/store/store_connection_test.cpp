// A program of its own, since the allocation meter replaces operator new.
#include "lockstep/store/store_connection.h"

#include <doctest/doctest.h>

#include "lockstep/store/store_protocol.h"
#include "tests/support/socket_pair.h"
#include "tests/unit/checkpoint/allocation_meter.h"

using namespace lockstep;

TEST_CASE("answers that a client has read are let go, also if it never catches up") {
  auto pair = make_socket_pair();
  StoreConnection connection(std::move(pair.first), Handshake::server({}, {}), Deadline::never());
  const StoreReply reply{.id = 1, .value = Bytes(std::size_t{256} << 10, 'v')};
  const std::size_t frame_bytes = kFrameHeaderBytes + encode(reply).size();
  constexpr std::size_t kLimit = std::size_t{8} << 20;
  for (int i = 0; i < 4; ++i) connection.send(reply, kLimit);  // more than the socket takes
  Bytes read(frame_bytes, '\0');
  const std::size_t peak = peak_allocation_of([&] {
    for (int i = 0; i < 200; ++i) {
      connection.send(reply, kLimit);
      for (std::size_t done = 0; done < read.size(); connection.flush()) {
        done += recv_some(pair.second.get(), as_span(read).subspan(done));
      }
      REQUIRE(connection.has_output());
    }
  });
  CHECK(peak < kLimit);  // of 50 MiB that went through it
}
