// Groups that share connections: none sees the bytes of another, holds it up or ends it.
#include "lockstep/comm/transport/shared_links.h"

#include <dirent.h>
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/hash.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/transport/control_message.h"
#include "tests/support/expect_error.h"
#include "tests/support/sanitized.h"
#include "tests/support/shared_meshes.h"

namespace shared_links_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

using Meshes = std::vector<std::unique_ptr<Mesh>>;
using Buffer = std::vector<std::byte>;

Deadline soon() { return Deadline::after(60s); }
ByteSpan bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::size_t count_descriptors() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// Byte `at` of the stream from one rank of a group to another.
std::byte content(int group, int from, int to, std::size_t at) {
  return static_cast<std::byte>(at * 31 + at / 257 + static_cast<std::size_t>(group * 97 + from * 13 + to * 5));
}

// All ranks of a group send `bytes` to each other, in pieces of random sizes. As one of them.
void exchange(Mesh& mesh, int group, std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  if (kIsSanitized) bytes /= 20;
  const int size = mesh.size();
  std::vector<std::size_t> sent(static_cast<std::size_t>(size)), received(static_cast<std::size_t>(size));
  Buffer out, in(200'000);
  for (;;) {
    std::vector<Mesh::Interest> interests;
    bool has_moved = false;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == mesh.rank()) continue;
      std::size_t& out_at = sent[static_cast<std::size_t>(peer)];
      std::size_t& in_at = received[static_cast<std::size_t>(peer)];
      // A piece that was begun is shown again, from where it is.
      out.clear();
      const std::size_t end = std::min(bytes, out_at + (kIsSanitized ? 30'000 : 150'000));
      for (std::size_t at = out_at; at < end; ++at) out.push_back(content(group, mesh.rank(), peer, at));
      const std::size_t out_count = out.empty() ? 0 : mesh.send_some(peer, out);
      out_at += out_count;
      const std::size_t room = std::min(random() % 3 == 0 ? in.size() : 1 + random() % 5000, bytes - in_at);
      const std::size_t in_count = mesh.recv_some(peer, std::span(in).first(room));
      for (std::size_t i = 0; i < in_count; ++i, ++in_at) {
        if (in[i] != content(group, peer, mesh.rank(), in_at)) throw std::runtime_error("bytes of another stream");
      }
      has_moved |= out_count + in_count != 0;
      const Mesh::Interest interest{peer, in_at < bytes, out_at < bytes};
      if (interest.readable || interest.writable) interests.push_back(interest);
    }
    if (interests.empty()) return;
    if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    if (!has_moved) mesh.wait(interests, soon());
  }
}

// A word from one rank to another.
void pass(Mesh& from, Mesh& to, const std::string& word = "word") {
  REQUIRE(from.send_some(to.rank(), bytes_of(word)) == word.size());
  std::string here(word.size(), ' ');
  for (std::size_t got = 0; got < here.size();) {
    const std::size_t count = to.recv_some(from.rank(), std::as_writable_bytes(std::span(here)).subspan(got));
    got += count;
    if (count == 0) to.wait(std::array{Mesh::Interest{from.rank(), true, false}}, soon());
  }
  CHECK(here == word);
}

Error error_of_wait(Mesh& mesh, int peer) {
  return error_of([&] {
    std::array<std::byte, 8> space;
    for (;;) {
      if (mesh.recv_some(peer, space) == 0) mesh.wait(std::array{Mesh::Interest{peer, true, false}}, soon());
    }
  });
}

// Three ranks, of which one is a puppet: it says what the test wants.
struct WithPuppet {
  explicit WithPuppet(int number) : links(3) {
    MemoryStore store;
    const Token token = Token::generate();
    run_ranks_or_throw(3, [&](int rank) {
      const auto settings = tcp_mesh_settings(rank, 3, token);
      if (rank == number) {
        puppet = connect_tcp_links(settings, store, soon()).links;
      } else {
        links[static_cast<std::size_t>(rank)] = connect_shared_links(settings, store, soon());
      }
    });
  }
  void say(int to, const Bytes& message) const {
    send_frame(puppet[static_cast<std::size_t>(to)].control.get(), message, kMaxControlBytes, soon());
  }

  SharedRanks links;
  std::vector<TcpLink> puppet;
};

}  // namespace

TEST_CASE("groups of random ranks exchange at the same time, each its own bytes") {
  constexpr int kRanks = 4;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const SharedRanks links =
        connect_ranks_of_test(kRanks, seed % 2 == 0 ? 3 : 1, seed % 3 == 0 ? Checksums::off : Checksums::on,
                              seed % 4 < 2 ? kWhenNeeded : kRanks);
    std::vector<std::vector<int>> groups;
    for (int group = 0; group < 5; ++group) {
      std::vector<int> ranks{0, 1, 2, 3};
      std::ranges::shuffle(ranks, random);
      ranks.resize(2 + random() % 3);
      groups.push_back(ranks);
    }
    std::vector<std::future<void>> threads;
    for (int group = 0; group < 5; ++group) {
      const std::size_t bytes = group == 0 ? 12'000'000 : random() % 2 == 0 ? random() % 3'000'000 : random() % 3000;
      const std::vector<int>& ranks = groups[static_cast<std::size_t>(group)];
      for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
        threads.push_back(std::async(std::launch::async, [&links, &ranks, group, rank, bytes, own = random()] {
          std::this_thread::sleep_for(std::chrono::milliseconds(own % 20));  // others are here before it
          const auto mesh = open_group(links, "group " + std::to_string(group), ranks, rank);
          exchange(*mesh, group, bytes, own);
        }));
      }
    }
    for (auto& each : threads) each.get();
  }
}

TEST_CASE("a group that nobody reads holds up no other, and loses nothing") {
  const SharedRanks links = connect_ranks_of_test(2);
  Meshes unread = open_group(links, "unread", {0, 1}), busy = open_group(links, "busy", {0, 1});
  const Buffer piece(100'000, std::byte{7});
  std::size_t sent = 0, idle = 0;
  for (std::size_t step = 0; step < 1000 && idle < 100; ++step) {
    const std::size_t count = unread[0]->send_some(1, piece);
    sent += count;
    idle = count == 0 ? idle + 1 : 0;
    std::jthread other([&] { exchange(*busy[1], 1, 30'000, 1); });
    exchange(*busy[0], 1, 30'000, 2);
  }
  CHECK(idle == 100);
  CHECK(sent == kFirstWindow);
  run_ranks_or_throw(2, [&](int rank) { exchange(*busy[static_cast<std::size_t>(rank)], 2, 20'000'000, 3); });
  Buffer space(1 << 20);
  std::size_t received = 0;
  while (received < sent) {
    const std::size_t count = unread[1]->recv_some(0, space);
    received += count;
    CHECK(std::ranges::all_of(std::span(space).first(count), [](std::byte each) { return each == std::byte{7}; }));
    if (count == 0) unread[1]->wait(std::array{Mesh::Interest{0, true, false}}, soon());
  }
  unread[0]->wait(std::array{Mesh::Interest{1, false, true}}, soon());
  CHECK(unread[0]->send_some(1, piece) != 0);
}

TEST_CASE("what a rank sends, says and does before its peer has opened the group, the peer finds") {
  const SharedRanks links = connect_ranks_of_test(2);
  Meshes open = open_group(links, "open", {0, 1});
  auto first = open_group(links, "second", {1, 0}, 0);
  CHECK(first->send_some(1, bytes_of("hello")) == 5);
  pass(*open[1], *open[0]);  // reads what comes before it
  auto second = open_group(links, "second", {1, 0}, 1);
  std::string here(5, ' ');
  CHECK(second->recv_some(0, std::as_writable_bytes(std::span(here))) == 5);
  CHECK(here == "hello");

  auto third = open_group(links, "third", {0, 1}, 0);
  third->announce("a call");
  third->abort(Error(ErrorKind::aborted, "no more of this"));
  const auto ended = open_group(links, "third", {0, 1}, 1);
  CHECK_ERROR(error_of_wait(*ended, 0), ErrorKind::aborted, "no more of this");
  const auto heard = ended->take_announcement();
  REQUIRE(heard);
  CHECK(heard->from == 0);
  CHECK(heard->bytes == "a call");

  auto fourth = open_group(links, "fourth", {0, 1}, 0);
  CHECK(fourth->send_some(1, bytes_of("last")) == 4);
  fourth.reset();
  auto late = open_group(links, "fourth", {0, 1}, 1);
  std::array<std::byte, 8> space;
  while (late->recv_some(0, space) != 4) late->wait(std::array{Mesh::Interest{0, true, false}}, soon());
  CHECK_ERROR(error_of_wait(*late, 0), ErrorKind::peer_lost, "rank 0", "left");
  pass(*open[0], *open[1]);
}

TEST_CASE("abort and the end of one group leave the others alone") {
  const SharedRanks links = connect_ranks_of_test(3);
  Meshes all = open_group(links, "all", {0, 1, 2}), pair = open_group(links, "pair", {2, 1});
  std::jthread runs([&] {
    run_ranks_or_throw(3, [&](int rank) { exchange(*all[static_cast<std::size_t>(rank)], 5, 8'000'000, 4); });
  });
  auto waits = std::async(std::launch::async, [&] { return error_of_wait(*pair[0], 1); });
  std::this_thread::sleep_for(20ms);
  const std::size_t begun = pair[1]->send_some(0, Buffer(100'000));
  CHECK(begun != 0);
  pair[1]->abort(Error(ErrorKind::aborted, "enough"));
  CHECK_ERROR(waits.get(), ErrorKind::aborted, "enough");
  pair.clear();
  runs.join();
  for (int round = 0; round < 20; ++round) {
    Meshes again = open_group(links, "again " + std::to_string(round), {0, 2});
    again[0]->send_some(1, Buffer(round % 2 == 0 ? 200'000 : 20));
    again.clear();
    pass(*all[0], *all[2], std::to_string(round));
    pass(*all[2], *all[0], std::to_string(round));
  }
}

TEST_CASE("a group that another thread has aborted receives nothing behind what it lost") {
  const SharedRanks links = connect_ranks_of_test(2);
  const Meshes other = open_group(links, "other", {0, 1});
  const auto sender = open_group(links, "group", {0, 1}, 0);
  const auto group = links[1]->open(hash_of("group"), 1, {0, 1}, {"rank 0", "rank 1"});
  GroupStream& stream = *group->by_rank[0];
  std::array<std::byte, 8> space;
  CHECK(sender->send_some(1, bytes_of("first")) == 5);
  pass(*other[0], *other[1]);  // reads what comes before it
  CHECK(stream.received == 5);
  links[1]->abort(*group, Error(ErrorKind::aborted, "no more of this"));
  CHECK(sender->send_some(1, bytes_of("second")) == 6);
  CHECK(links[1]->receive(stream, space).bytes == 0);
  pass(*other[0], *other[1]);
  links[1]->close(*group);
}

TEST_CASE("the death of a peer ends all groups with it, each in its own numbers") {
  WithPuppet ranks(2);
  const SharedRanks& links = ranks.links;
  const auto all = open_group(links, "all", {0, 1, 2}, 1), pair = open_group(links, "pair", {2, 0}, 1);
  const Meshes without = open_group(links, "without", {0, 1});
  auto one = std::async(std::launch::async, [&] { return error_of_wait(*all, 2); });
  auto two = std::async(std::launch::async, [&] { return error_of_wait(*pair, 0); });
  std::this_thread::sleep_for(10ms);
  ranks.puppet.clear();  // as if its process ended
  Error error = one.get();
  CHECK_ERROR(error, ErrorKind::peer_lost, "rank 2", "its process ended");
  CHECK(error.detail().peer == 2);
  error = two.get();
  CHECK_ERROR(error, ErrorKind::peer_lost, "rank 0", "its process ended");
  CHECK(error.detail().peer == 0);
  pass(*without[0], *without[1]);
  // A group that begins now knows, too.
  CHECK_ERROR(error_of_wait(*open_group(links, "late", {1, 2}, 0), 1), ErrorKind::peer_lost, "its process ended");
}

TEST_CASE("many groups cost no descriptors, and close cleanly while others run") {
  const SharedRanks links = connect_ranks_of_test(4);
  Meshes first = open_group(links, "first", {0, 1, 2, 3});
  const std::size_t before = count_descriptors();
  {
    std::vector<Meshes> groups;
    for (int group = 0; group < 100; ++group) {
      groups.push_back(open_group(links, "group " + std::to_string(group), {0, 1, 2, 3}));
      pass(*groups.back()[0], *groups.back()[3]);
    }
    CHECK(count_descriptors() == before);
    std::jthread runs([&] {
      run_ranks_or_throw(4, [&](int rank) { exchange(*first[static_cast<std::size_t>(rank)], 5, 3'000'000, 4); });
    });
    while (!groups.empty()) groups.pop_back();
  }
  pass(*first[1], *first[2]);
  CHECK_ERROR(error_of([&] { open_group(links, "first", {0, 1}); }), ErrorKind::invalid_argument, "already");
}

TEST_CASE("a group is forgotten once all its ranks have closed it, and not before") {
  const SharedRanks links = connect_ranks_of_test(3);
  const Meshes first = open_group(links, "first", {0, 1, 2});
  for (int round = 0; round < 50; ++round) {
    Meshes group = open_group(links, "group", {0, 1, 2});
    pass(*group[0], *group[1]);
    CHECK(group[2]->send_some(0, bytes_of("nobody reads this")) != 0);
    group[0].reset();
    // Late data of it are dropped, and its id is in use, until rank 2 has closed it.
    pass(*first[2], *first[0]);
    CHECK(links[0]->groups_with(2) == 2);
    CHECK_ERROR(error_of([&] { open_group(links, "group", {0, 2}, 0); }), ErrorKind::invalid_argument, "already");
    group.clear();
    // What a rank says after its goodbye is read after it.
    for (const auto& each : first) {
      for (const auto& other : first) {
        if (each != other) each->send_some(other->rank(), bytes_of("word"));
      }
    }
    for (int rank = 0; rank < 3; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      for (int peer = 0; peer < 3; ++peer) {
        std::array<std::byte, 4> space;
        for (std::size_t got = 0; peer != rank && got < space.size();) {
          got += first[r]->recv_some(peer, std::span(space).subspan(got));
          if (got < space.size()) first[r]->wait(std::array{Mesh::Interest{peer, true, false}}, soon());
        }
        while (links[r]->groups_with(peer) > (peer == rank ? 0 : 1)) first[r]->wait({}, soon());
      }
    }
  }
}

TEST_CASE("a peer that speaks in a group of others, or beyond its credit, is damage of the connection") {
  for (const bool is_greedy : {false, true}) {
    CAPTURE(is_greedy);
    const WithPuppet ranks(1);
    auto own = open_group(ranks.links, "own", {0, 1}, 0);
    CheckedSender sender(Checksums::on);
    const Buffer block(kMostBlockBytes);
    std::jthread speaks([&] {
      for (std::size_t i = 0; i < (is_greedy ? kFirstWindow / kMostBlockBytes + 1 : 1); ++i) {
        for (std::size_t sent = 0; sent < block.size();) {
          const ssize_t count =
              sender.send(ranks.puppet[0].data.front().get(), hash_of("others"), ByteSpan(block).subspan(sent));
          if (count > 0) sent += static_cast<std::size_t>(count);
          if (count < 0) std::this_thread::sleep_for(1ms);
        }
      }
    });
    std::unique_ptr<Mesh> others;
    if (!is_greedy) {
      others = open_group(ranks.links, "others", {0, 2}, 0);
      CHECK_ERROR(error_of_wait(*own, 1), ErrorKind::corrupt_data, "its sender is not a member of the group");
    } else {
      CHECK_ERROR(error_of_wait(*own, 1), ErrorKind::corrupt_data, "it exceeds its credit");
    }
  }
}

TEST_CASE("a control message that no rank sends ends the groups with that peer, by its name") {
  const Bytes forged = encode_abort(hash_of("late"), Error(ErrorKind::aborted, "of rank 7", {.peer = 7}));
  {
    const WithPuppet ranks(1);
    auto own = open_group(ranks.links, "own", {0, 1}, 0);
    const auto without = open_group(ranks.links, "without", {0, 2});
    ranks.say(0, encode(ControlKind::credit, hash_of("own"), 1));
    CHECK_ERROR(error_of_wait(*own, 1), ErrorKind::corrupt_data, "rank 1", "credit for more than was sent");
    pass(*without[0], *without[1]);
  }
  {
    const WithPuppet ranks(1);
    auto own = open_group(ranks.links, "own", {0, 1}, 0);
    std::jthread speaks([&] {
      for (GroupId id = 0; id <= 1 << 16; ++id) ranks.say(0, encode(ControlKind::bell, id));
    });
    CHECK_ERROR(error_of_wait(*own, 1), ErrorKind::corrupt_data, "rank 1", "its sender uses more than");
  }
  {
    const WithPuppet ranks(1);
    ranks.say(0, forged);
    CHECK_ERROR(error_of_wait(*open_group(ranks.links, "late", {0, 1}, 0), 1), ErrorKind::corrupt_data, "rank 1");
  }
}

TEST_CASE("an abort that only some ranks were told is passed on to all") {
  const WithPuppet ranks(1);
  const auto first = open_group(ranks.links, "all", {0, 1, 2}, 0), last = open_group(ranks.links, "all", {0, 1, 2}, 2);
  ranks.say(0, encode_abort(hash_of("all"), Error(ErrorKind::aborted, "no more of this", {.rank = 1})));
  std::jthread waits([&] { CHECK_ERROR(error_of_wait(*first, 1), ErrorKind::aborted, "no more of this"); });
  CHECK_ERROR(error_of_wait(*last, 1), ErrorKind::aborted, "no more of this");
}

}  // namespace shared_links_test
