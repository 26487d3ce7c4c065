// Messengers of ranks that are threads of this process, over each kind of mesh.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/messages/messenger.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/tcp_meshes.h"

namespace lockstep::testing {

using namespace internal;

using Messengers = std::vector<std::unique_ptr<Messenger>>;
using Buffer = std::vector<std::byte>;

struct MeshKind {
  const char* name;
  std::vector<std::unique_ptr<Mesh>> (*make)(int size);
};
inline const MeshKind kMeshKinds[] = {
    {"shared memory in small rings", [](int size) { return make_arena_meshes(size, 32 << 10); }},
    {"tcp", [](int size) { return make_tcp_meshes(size); }},
    {"tcp, connected when needed", [](int size) { return make_tcp_meshes(size, 1, 0, Checksums::on, kWhenNeeded); }},
    {"tcp, connected in a ring and when needed",
     [](int size) { return make_tcp_meshes(size, 1, 0, Checksums::on, kWhenNeeded, Neighbours::in_ring); }},
    {"shared memory", [](int size) { return make_arena_meshes(size); }},
};

inline Messengers make_messengers(std::vector<std::unique_ptr<Mesh>> meshes) {
  Messengers messengers;
  for (auto& mesh : meshes) messengers.push_back(std::make_unique<Messenger>(std::move(mesh)));
  return messengers;
}

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
inline Deadline after_ms(int ms) { return Deadline::after(std::chrono::milliseconds(ms)); }

// Bytes that tell whose message they are.
inline Buffer content(std::size_t bytes, std::uint64_t seed) {
  Buffer buffer(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t at = 0; at < bytes; at += sizeof state) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t mixed = state ^ state >> 32;
    std::memcpy(buffer.data() + at, &mixed, std::min(sizeof mixed, bytes - at));
  }
  return buffer;
}

}  // namespace lockstep::testing
