// Backends are the libraries that a group's collectives can run on: Lockstep's own engines ("native"), those that this
// build has of gloo and mpi, which replace them, and nccl, which is beside them for tensors of GPUs.
// GroupOptions -> backend -> Engine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/adapters/carrier.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep {

// Of this build; "native" first.
std::vector<std::string> backends();

// Whether a backend can do it, without a group; a group's own supports() knows devices as well.
// Error{invalid_argument} for an unknown backend.
bool supports(std::string_view backend, OpKind kind, ReduceOp op, DType dtype);

}  // namespace lockstep

namespace lockstep::internal {

inline constexpr std::string_view kNativeBackend = "native";

// Whether it is one of them.
bool has_backend(std::string_view name) noexcept;

// The name, or for an empty one what LOCKSTEP_BACKEND says. Error{invalid_argument} that lists backends() if it is none
// of them.
std::string choose_backend(std::string_view name);
// Whether tensors of the host are carried by Lockstep's own engines; the empty name is such a backend.
bool is_native(std::string_view backend) noexcept;

// How its library tells this process its rank, for JoinOptions::bootstrap; empty where it does not start ranks. Asking
// starts the library.
std::function<Bootstrap()> bootstrap_of(std::string_view backend);

// An engine over one of backends() that is not native. Blocks until all ranks have met. Error{timeout};
// {invalid_argument} where the library cannot work here, with what to do.
std::unique_ptr<Engine> make_backend_engine(std::string_view backend, const CarrierSite& site, Deadline deadline);

}  // namespace lockstep::internal
