// Work on the streams of a device that waits for other work, and work that should.
#include "tests/support/stream_order.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

namespace stream_order_test {

using namespace lockstep::testing;
using Clock = StreamOrder::Clock;
using Work = StreamOrder::Work;

namespace {

struct Memory {
  explicit Memory(StreamOrder& of, StreamOrder::Stream stream = 0) : order(of) { order.allocate(bytes, 16, stream); }
  ~Memory() { order.free(bytes); }
  StreamOrder& order;
  char bytes[16];
};

void write(StreamOrder& order, StreamOrder::Stream stream, const Memory& memory) {
  Work(order, stream, "write").writes(memory.bytes, 16);
}
void read(StreamOrder& order, StreamOrder::Stream stream, const Memory& memory) {
  Work(order, stream, "read").reads(memory.bytes, 16);
}

}  // namespace

TEST_CASE("work of one stream is ordered, and so is reading on two") {
  StreamOrder order;
  Memory memory(order);
  write(order, 0, memory);
  read(order, 0, memory);
  order.block(1, order.record(0));
  read(order, 1, memory);
  read(order, 0, memory);
  order.block(0, order.record(1));
  CHECK(order.take_races().empty());
}

TEST_CASE("a stream that does not wait for the writer, for the reader or for the other writer races") {
  StreamOrder order;
  Memory memory(order);
  write(order, 0, memory);
  read(order, 1, memory);
  CHECK(order.take_races() == std::vector<std::string>{"stream 1 reads 16 bytes (read) that stream 0 writes (write)"});
  write(order, 0, memory);
  CHECK(order.take_races() == std::vector<std::string>{"stream 0 writes 16 bytes (write) that stream 1 reads (read)"});
  write(order, 2, memory);
  CHECK(order.take_races().size() == 2);  // with the reader and with the last writer
  order.synchronize(1);
  order.synchronize(2);
}

TEST_CASE("parts of memory are distinguished") {
  StreamOrder order;
  Memory memory(order);
  Work(order, 0, "a").writes(memory.bytes, 8);
  Work(order, 1, "b").writes(memory.bytes + 8, 8);
  CHECK(order.take_races().empty());
  Work(order, 1, "c").writes(memory.bytes + 7, 1);
  CHECK(order.take_races() == std::vector<std::string>{"stream 1 writes 1 bytes (c) that stream 0 writes (a)"});
  order.synchronize(1);
}

TEST_CASE("an event carries what its stream had waited for, and nothing later") {
  StreamOrder order;
  Memory first(order), second(order, 2);
  write(order, 0, first);
  order.block(1, order.record(0));
  const Clock event = order.record(1);
  order.block(2, event);
  read(order, 2, first);  // by way of stream 1
  CHECK(order.take_races().empty());
  write(order, 0, first);
  CHECK(order.take_races().size() == 1);  // stream 2 reads it
  order.block(2, event);
  write(order, 2, first);
  CHECK(order.take_races().size() == 1);  // stream 0 wrote after the event
  order.synchronize(2);
}

TEST_CASE("what the host has waited for comes before all that it queues later") {
  StreamOrder order;
  Memory memory(order);
  write(order, 0, memory);
  const Clock event = order.record(0);
  CHECK_FALSE(order.is_known(event));
  order.synchronize(event);
  CHECK(order.is_known(event));
  write(order, 1, memory);
  order.synchronize(1);
  CHECK(order.take_races().empty());
}

TEST_CASE("a host that waits learns of all work before it, once") {
  StreamOrder order;
  int known = 0;
  Work(order, 0, "first").when_known([&] { ++known; });
  const Clock event = order.record(0);
  Work(order, 0, "second").when_known([&] { known += 10; });
  order.synchronize(1);
  CHECK(known == 0);
  order.synchronize(event);
  CHECK(known == 1);
  order.synchronize(0);
  CHECK(known == 11);
}

TEST_CASE("memory may be freed once its own stream waits for the others, or if they are announced") {
  StreamOrder order;
  const auto use = [&](auto&& before_the_end) {
    Memory memory(order);
    order.block(1, order.record(0));
    read(order, 1, memory);
    before_the_end(memory);
  };
  use([](const Memory&) {});
  CHECK(order.take_races() == std::vector<std::string>{"memory of stream 0 is freed while stream 1 reads it (read)"});
  use([&](const Memory&) { order.block(0, order.record(1)); });
  use([&](const Memory& memory) { order.use_on(memory.bytes, 1); });
  use([&](const Memory&) { order.synchronize(1); });
  CHECK(order.take_races().empty());
}

// The oracle: all work in a graph, in which the order is a path.
TEST_CASE("random work races exactly where no path of the graph orders it") {
  constexpr int kSteps = 40, kStreams = 4, kPlaces = 3;
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
    StreamOrder order;
    std::vector<Memory*> places;
    for (int i = 0; i < kPlaces; ++i) places.push_back(new Memory(order));
    // Of each step: what comes before it, itself included.
    std::vector<std::vector<bool>> before;
    std::vector<std::vector<bool>> of_stream(kStreams, std::vector<bool>(kSteps));
    std::vector<bool> of_host(kSteps);
    struct Use {
      int step, place;
      bool writes;
    };
    std::vector<Use> uses;
    const auto add = [](std::vector<bool>& to, const std::vector<bool>& from) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = to[i] || from[i];
    };
    for (int step = 0; step < kSteps; ++step) {
      const auto stream = static_cast<std::size_t>(pick(kStreams)), other = static_cast<std::size_t>(pick(kStreams));
      switch (pick(5)) {
        case 0:
          order.block(stream, order.record(other));
          add(of_stream[stream], of_stream[other]);
          break;
        case 1:
          order.synchronize(stream);
          add(of_host, of_stream[stream]);
          break;
        default:
          const Use use{step, pick(kPlaces), pick(2) == 0};
          Memory& memory = *places[static_cast<std::size_t>(use.place)];
          add(of_stream[stream], of_host);
          bool is_ordered = true;
          for (const Use& each : uses) {
            if (each.place != use.place || (!each.writes && !use.writes)) continue;
            is_ordered &= of_stream[stream][static_cast<std::size_t>(each.step)];
          }
          (use.writes ? write : read)(order, stream, memory);
          CHECK(order.take_races().empty() == is_ordered);
          of_stream[stream][static_cast<std::size_t>(step)] = true;
          uses.push_back(use);
      }
    }
    for (StreamOrder::Stream each = 0; each < kStreams; ++each) order.synchronize(each);
    for (Memory* each : places) delete each;
    CHECK(order.take_races().empty());
  }
}

}  // namespace stream_order_test
