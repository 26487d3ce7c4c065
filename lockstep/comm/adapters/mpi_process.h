// MpiProcess is the MPI of this process: initialised once, with the first group that needs it, and finalised when the
// program ends normally. MpiCarrier -> MpiProcess -> libmpi. Thread-safe: MPI is called under its lock, so that MPI
// need only serialise (MPI_THREAD_SERIALIZED). May block while MPI starts.
#pragma once

#include <mpi.h>

#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

class MpiProcess {
 public:
  // Error{invalid_argument} where MPI was started by the program for less than serialised threads, or has been
  // finalised.
  static MpiProcess& instance();

  std::mutex& mutex() { return mutex_; }
  // A group has failed: other ranks may never reach MPI_Finalize, so this process must not wait for them there.
  void leave_unfinalized() { finalize_ = false; }

 private:
  MpiProcess();
  ~MpiProcess();

  std::mutex mutex_;
  bool finalize_ = false;
};

// This process's rank, from MPI, which it starts.
Bootstrap mpi_bootstrap();

// Error{internal} that quotes MPI, if the code is an error.
void check_mpi(int code, const char* what);

}  // namespace lockstep::internal
