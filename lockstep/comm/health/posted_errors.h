// PostedErrors is how ranks whose library cannot tell them learn why their group has ended: each posts its error in the
// job's store before it leaves, and then reads what the others posted. A rank that posts nothing is the missing one.
// CarrierEngine -> PostedErrors -> store. Thread-safe. post() and read() block, at most until their deadline.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/checked.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

// An error as one rank tells it to others: its kind, whose it is, the rank that it is about, its text up to
// kMaxErrorTextBytes.
inline constexpr std::size_t kMaxErrorTextBytes = 4000;
Bytes encode_error(const Error& error);
// As an error of `rank`, about one of `ranks`. A rank that another one has lost lives: for itself the error is about
// that other one. Error{corrupt_data} that names the origin.
Error decode_error(ByteView encoded, const Origin& origin, int rank, int ranks = kMostRanks);

class PostedErrors {
 public:
  // By rank; nothing of a rank that has not posted.
  using All = std::vector<std::optional<Error>>;

  // group: the same on all ranks, and no other group's.
  PostedErrors(std::shared_ptr<Store> store, const std::string& group, int rank, int size);

  // A failure of the store is not reported: to the others this rank is missing.
  void post(const Error& error, Deadline deadline) noexcept;
  // Returns at once when all have posted, else at the deadline. What a rank cannot have posted is its
  // Error{corrupt_data}.
  All read(Deadline deadline) noexcept;
  // Whether any rank has posted. False if the store does not answer.
  bool any(Deadline deadline) noexcept;

 private:
  std::string key_of(int rank) const;

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
};

// Why the group ended, from what this rank saw and what all posted. An abort() is the root cause of all else, then
// corrupt data, then a timeout; else it is what this rank saw. Ranks that posted nothing are named. Pure.
Error root_cause(const Error& seen, int rank, const PostedErrors::All& posted, const std::vector<std::string>& members);

}  // namespace lockstep::internal
