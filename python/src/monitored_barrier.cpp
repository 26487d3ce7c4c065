#include "monitored_barrier.h"

#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::python {
namespace {

constexpr Duration kVerdictGrace = std::chrono::seconds(1);  // rank 0's word is on its way when the timeout passes

std::string milliseconds(Duration timeout) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) + " ms";
}

// Empty if all came.
std::string missing_ranks(Store& store, const std::string& prefix, int size, Deadline deadline, bool all) {
  std::vector<int> missing;
  for (int rank = 1; rank < size; ++rank) {
    const bool came = store.wait({prefix + std::to_string(rank)}, deadline).empty();
    if (!came) missing.push_back(rank);
    if (!came && !all) break;
  }
  if (missing.empty()) return {};
  std::string text = missing.size() == 1 ? "Rank " : "Ranks ";
  for (std::size_t i = 0; i < missing.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
  return text;
}

}  // namespace

void monitored_barrier(Store& store, int rank, int size, std::uint64_t number, Duration timeout, bool wait_all_ranks) {
  const Deadline deadline = Deadline::after(timeout);
  const std::string prefix = "monitored_barrier/" + std::to_string(number) + "/";
  const std::string verdict = prefix + "verdict";
  const std::string me = "[Rank " + std::to_string(rank) + "]: ";
  if (rank == 0) {
    if (timeout <= Duration::zero()) {
      throw Error(ErrorKind::timeout, me + "Rank 0 timed out in monitoredBarrier after " + milliseconds(timeout));
    }
    const std::string missing = missing_ranks(store, prefix, size, deadline, wait_all_ranks);
    store.set(verdict, missing, Deadline::after(kVerdictGrace));
    if (missing.empty()) return;
    throw Error(ErrorKind::timeout, me + missing + " failed to pass monitoredBarrier in " + milliseconds(timeout) +
                                        "; is it alive, and does it call it as often as the others?");
  }
  store.set(prefix + std::to_string(rank), "", deadline);
  const bool told = store.wait({verdict}, Deadline::after(timeout + kVerdictGrace)).empty();
  const std::string missing = told ? store.get(verdict, deadline) : "rank 0 did not answer";
  if (told && missing.empty()) return;
  throw Error(ErrorKind::timeout,
              me + "Rank " + std::to_string(rank) +
                  " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank "
                  "0: " +
                  missing + (told ? " did not come" : ""));
}

}  // namespace lockstep::python
