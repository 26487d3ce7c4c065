// MPI as the one who says which rank this process is, for programs that only its mpirun has started.
#include <poll.h>

#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/comm/adapters/mpi_process.h"

namespace lockstep::internal {
namespace {

constexpr std::uint32_t kMostBytes = 64 << 10;
constexpr int kLookMs = 1;

// MPI may write into the buffer as long as the operation is under way, so that it outlives one that was given up.
void wait_for(MPI_Request request, std::shared_ptr<std::vector<char>> buffer, Deadline deadline) {
  MpiProcess& process = MpiProcess::instance();
  for (;;) {
    int done = 0;
    {
      const std::lock_guard lock(process.mutex());
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "waiting for rank 0's address");
    }
    if (done != 0) return;
    if (deadline.expired()) {
      new std::shared_ptr<std::vector<char>>(std::move(buffer));
      process.leave_unfinalized();
      throw Error(ErrorKind::timeout, "not all MPI ranks joined before the deadline");
    }
    ::poll(nullptr, 0, kLookMs);
  }
}

std::vector<char> broadcast(std::vector<char> bytes, Deadline deadline) {
  MpiProcess& process = MpiProcess::instance();
  const auto buffer = std::make_shared<std::vector<char>>(std::move(bytes));
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(process.mutex());
    check_mpi(MPI_Ibcast(buffer->data(), static_cast<int>(buffer->size()), MPI_BYTE, 0, MPI_COMM_WORLD, &request),
              "sending rank 0's address");
  }
  wait_for(request, buffer, deadline);
  return *buffer;
}

std::string from_rank_zero(const std::string& text, Deadline deadline) {
  std::uint32_t length = static_cast<std::uint32_t>(text.size());
  std::vector<char> head(sizeof length);
  std::memcpy(head.data(), &length, sizeof length);
  head = broadcast(std::move(head), deadline);
  std::memcpy(&length, head.data(), sizeof length);
  if (length > kMostBytes) {
    throw Error(ErrorKind::corrupt_data, "rank 0 sent an address of " + std::to_string(length) +
                                             " bytes over MPI; at most " + std::to_string(kMostBytes) + " are allowed");
  }
  std::vector<char> body(text.begin(), text.end());
  body.resize(length);
  body = broadcast(std::move(body), deadline);
  return {body.begin(), body.end()};
}

}  // namespace

Bootstrap mpi_bootstrap() {
  MpiProcess& process = MpiProcess::instance();
  Bootstrap bootstrap{.name = "MPI", .from_rank_zero = from_rank_zero};
  const std::lock_guard lock(process.mutex());
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &bootstrap.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &bootstrap.size), "MPI_Comm_size");
  return bootstrap;
}

}  // namespace lockstep::internal
