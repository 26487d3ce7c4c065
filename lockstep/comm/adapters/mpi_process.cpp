#include "lockstep/comm/adapters/mpi_process.h"

#include <array>

namespace lockstep::internal {

MpiProcess& MpiProcess::instance() {
  static MpiProcess process;
  return process;
}

MpiProcess::MpiProcess() {
  int initialized = 0, finalized = 0, provided = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
  if (finalized != 0)
    throw Error(ErrorKind::invalid_argument, "the mpi backend cannot be used: MPI_Finalize has been called already");
  if (initialized == 0) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    finalize_ = true;
  } else {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorKind::invalid_argument,
                "the mpi backend needs MPI_THREAD_SERIALIZED, but MPI provides less in this process; pass it to "
                "MPI_Init_thread, or leave it to Lockstep to initialize MPI");
  }
}

MpiProcess::~MpiProcess() {
  int finalized = 0;
  if (finalize_ && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Finalize();
}

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorKind::internal,
              std::string(what) + " failed: " + std::string(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace lockstep::internal
