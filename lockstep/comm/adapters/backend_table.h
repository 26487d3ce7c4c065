// The table of the libraries that this build has; CMake fills it in. backends -> table -> carriers.
#pragma once

#include <span>
#include <string_view>

#include "lockstep/comm/adapters/carrier_engine.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

struct BackendEntry {
  std::string_view name;
  MakeCarrier make;
  Reductions reductions;
  Bootstrap (*bootstrap)();  // null where the library does not start ranks
};

std::span<const BackendEntry> backend_table();

// Each is defined where the library was found.
std::unique_ptr<Carrier> make_gloo_carrier(const CarrierSite& site, Deadline deadline);
std::unique_ptr<Carrier> make_mpi_carrier(const CarrierSite& site, Deadline deadline);
std::unique_ptr<Carrier> make_nccl_carrier(const CarrierSite& site, Deadline deadline);
Bootstrap mpi_bootstrap();
bool gloo_reduces(ReduceOp op, DType dtype);
bool mpi_reduces(ReduceOp op, DType dtype);
bool nccl_reduces(ReduceOp op, DType dtype);

}  // namespace lockstep::internal
