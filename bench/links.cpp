// What groups get out of TCP connections.
//   bench_links together          two groups at once, and one after the other, with the same peer and with two
//   bench_links far <rank> <store file> <address> <connections> <seconds>
//                                 rank 0 sends to rank 1, which prints what arrives; see bench/far.py
// In the first, all ranks are in one process, and one thread does both ends of a group, so that each group keeps one
// core busy. No torch.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/comm/store/file_store.h"
#include "lockstep/comm/store/memory_store.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kPieces = 2000;
constexpr int kRounds = 5;

using Links = std::vector<std::shared_ptr<SharedLinks>>;
using Pair = std::array<std::unique_ptr<Mesh>, 2>;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Deadline soon() { return Deadline::after(60s); }

Links connect_ranks() {
  MemoryStore store;
  const Token token = Token::generate();
  Links links(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const TcpMeshSettings settings{.rank = rank, .size = kRanks, .job_id = "bench", .token = token, .name = "bench"};
      links[static_cast<std::size_t>(rank)] = connect_shared_links(settings, store, soon());
    });
  }
  return links;
}

Pair open_pair(const Links& links, const std::string& name, int peer) {
  const TcpGroup group{.name = name, .ranks = {0, peer}, .names = {"rank 0", fmt::format("rank {}", peer)}};
  TcpGroup other = group;
  other.rank = 1;
  return {open_tcp_mesh(links[0], group), open_tcp_mesh(links[static_cast<std::size_t>(peer)], other)};
}

// Both ends in one thread, each in its turn.
void exchange(Pair& pair) {
  std::vector<std::byte> out(kPieceBytes, std::byte{1}), in(kPieceBytes);
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    for (std::size_t sent = 0, received = 0; received < kPieceBytes;) {
      if (sent < kPieceBytes) sent += pair[0]->send_some(1, ByteSpan(out).subspan(sent));
      const std::size_t count = pair[1]->recv_some(0, std::span(in).subspan(received));
      received += count;
      if (count != 0) continue;
      for (const auto& mesh : pair) mesh->wait({}, soon());
    }
  }
}

double seconds_of(Pair& first, Pair& second, bool is_together) {
  const auto start = Clock::now();
  if (is_together) {
    const std::jthread other([&] { exchange(second); });
    exchange(first);
  } else {
    exchange(first);
    exchange(second);
  }
  return seconds_since(start);
}

int run_together() {
  const Links links = connect_ranks();
  Pair first = open_pair(links, "first", 1), same = open_pair(links, "same", 1), apart = open_pair(links, "apart", 2);
  for (Pair* const second : {&apart, &same}) {
    std::vector<double> ratios;
    for (int round = 0; round < kRounds; ++round) {
      const double in_turn = seconds_of(first, *second, false), together = seconds_of(first, *second, true);
      ratios.push_back(in_turn / together);
      std::printf("%s: in turn %.2f s, together %.2f s, ratio %.2f\n", second == &same ? "same peer" : "two peers",
                  in_turn, together, ratios.back());
    }
    std::ranges::sort(ratios);
    std::printf("%s: median ratio %.2f\n", second == &same ? "same peer" : "two peers", ratios[kRounds / 2]);
  }
  return 0;
}

int run_far(int rank, const std::string& path, const std::string& address, int connections, double most) {
  FileStore store(path, "bench", soon());
  const TcpMeshSettings settings{.rank = rank,
                                 .size = 2,
                                 .job_id = "bench",
                                 .token = Token::from_home(),
                                 .name = "bench",
                                 .address = address,
                                 .connections = connections};
  const auto mesh = connect_tcp_mesh(settings, store, soon());
  std::vector<std::byte> space(std::size_t{4} << 20);
  const auto start = Clock::now();
  std::uint64_t moved = 0, before = 0;
  for (double second = 0; second < most;) {
    const std::size_t count = rank == 0 ? mesh->send_some(1, space) : mesh->recv_some(0, space);
    moved += count;
    if (count == 0) mesh->wait(std::array{Mesh::Interest{1 - rank, rank == 1, rank == 0}}, soon());
    if (seconds_since(start) < second + 1) continue;
    second = seconds_since(start);
    if (rank == 1) std::printf("%.1f s: %.1f MB/s\n", second, static_cast<double>(moved - before) / 1e6);
    std::fflush(stdout);
    before = moved;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 1 && words[0] == "together") return run_together();
    if (words.size() == 6 && words[0] == "far") {
      return run_far(std::stoi(words[1]), words[2], words[3], std::stoi(words[4]), std::stod(words[5]));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_links: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: bench_links together | far <rank> <store file> <address> <connections> <seconds>\n");
  return 2;
}
