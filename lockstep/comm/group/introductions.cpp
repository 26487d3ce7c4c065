#include "lockstep/comm/group/introductions.h"

#include <algorithm>
#include <cstring>

namespace lockstep::internal {
namespace {

template <std::size_t N>
std::uint16_t put(std::array<char, N>& to, const std::string& text) {
  const std::size_t bytes = std::min(text.size(), N);
  std::memcpy(to.data(), text.data(), bytes);
  return static_cast<std::uint16_t>(bytes);
}

}  // namespace

Introductions::Introductions(int rank, int size, const std::string& id, const std::string& device)
    : rank_(static_cast<std::size_t>(rank)), all_(static_cast<std::size_t>(size)) {
  Introduction& mine = all_[rank_];
  mine.id_bytes = put(mine.id, id);
  mine.device_bytes = put(mine.device, device);
}

void Introductions::exchange(Engine& engine, const Collective& real, Mover mover, Deadline deadline) {
  Introduction mine = all_[rank_];
  Collective as = real;
  as.mover = mover;
  const Segment input{reinterpret_cast<std::byte*>(&mine), sizeof mine};
  const Segment output{reinterpret_cast<std::byte*>(all_.data()), all_.size() * sizeof mine};
  engine.run({.kind = OpKind::all_gather,
              .count = sizeof mine,
              .name = real.name,
              .input = {&input, 1},
              .output = {&output, 1},
              .as = &as},
             deadline);
}

std::optional<std::pair<std::size_t, std::size_t>> Introductions::same_device() const {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool are_known = all_[i].device_bytes != 0 && all_[i].device_bytes == all_[j].device_bytes;
      if (are_known && all_[i].device == all_[j].device) return {{j, i}};
    }
  }
  return {};
}

Introductions introduce(const CommunicatorLibrary& library, at::Device device, int rank, int size) {
  return {rank, size, rank == 0 ? library.make_id() : std::string(),
          library.identity == nullptr ? std::string() : library.identity(device)};
}

}  // namespace lockstep::internal
