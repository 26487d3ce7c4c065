// What the ranks of a group tell each other before a communicator of devices is made. A value; one thread at a time.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/adapters/communicator.h"
#include "lockstep/comm/collective/engine.h"

namespace lockstep::internal {

class Introductions {
 public:
  Introductions() = default;
  // id: rank 0's. device: see CommunicatorLibrary::identity.
  Introductions(int rank, int size, const std::string& id, const std::string& device);

  // Blocks until all ranks have. It is compared as a call of `real`, the first that a device's communicator is to move,
  // with this mover.
  void exchange(Engine& engine, const Collective& real, Mover mover, Deadline deadline);
  // Two ranks that have the same device.
  std::optional<std::pair<std::size_t, std::size_t>> same_device() const;
  std::string id() const { return {all_[0].id.data(), all_[0].id_bytes}; }

 private:
  struct Introduction {
    std::array<char, kMaxCommunicatorId> id;
    std::array<char, kMaxDeviceIdentity> device;
    std::uint16_t id_bytes;
    std::uint16_t device_bytes;
  };

  std::size_t rank_ = 0;
  std::vector<Introduction> all_;  // by rank; the others' after exchange()
};

// Of this rank. Throws what the library throws.
Introductions introduce(const CommunicatorLibrary& library, at::Device device, int rank, int size);

}  // namespace lockstep::internal
