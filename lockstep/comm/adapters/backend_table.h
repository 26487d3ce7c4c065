// The table of the libraries that a build can have; CMake fills it in. backends -> table -> carriers, communicators.
#pragma once

#include <span>
#include <string_view>

#include "lockstep/comm/adapters/carrier_engine.h"
#include "lockstep/comm/adapters/communicator.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

// Either carries the collectives of a group, or is beside the native engine for tensors of devices.
struct BackendEntry {
  std::string_view name;
  MakeCarrier make = nullptr;
  Reductions reductions = nullptr;
  Bootstrap (*bootstrap)() = nullptr;  // null where the library does not start ranks
  const CommunicatorLibrary* communicators = nullptr;
  std::string_view remedy = {};  // why the build lacks it, and what to do

  bool is_built() const { return make != nullptr || communicators != nullptr; }
};

std::span<const BackendEntry> backend_table();

// Each is defined where the library was found.
BackendEntry gloo_backend();
BackendEntry mpi_backend();
BackendEntry nccl_backend();

}  // namespace lockstep::internal
