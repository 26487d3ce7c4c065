// PostedErrors is how ranks whose library cannot tell them learn why their group has ended: each says so in the job's
// store before it leaves, and then hears what the others said. Who says nothing is the one who is missing.
// CarrierEngine -> PostedErrors -> store. Thread-safe. say() and hear() block, at most until their deadline.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct Word {
  ErrorKind kind = ErrorKind::internal;
  std::string text;
};

// As a rank has left it in the store; what it cannot have left there is a word of ErrorKind::corrupt_data.
Word decode_word(ByteView told, int rank);

class PostedErrors {
 public:
  // group: the same on all ranks, and no other group's.
  PostedErrors(std::shared_ptr<Store> store, const std::string& group, int rank, int size);

  // What goes wrong in the store is not reported: the others will find this rank silent.
  void say(const Word& word, Deadline deadline) noexcept;
  // By rank; nothing for those who have not said anything by the deadline. Returns at once when all have.
  std::vector<std::optional<Word>> hear(Deadline deadline) noexcept;
  // Whether any rank has said something by now. False if the store does not answer.
  bool any(Deadline deadline) noexcept;

 private:
  std::string key_of(int rank) const;

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
};

// Why the group ended, from what this rank saw and what all of them said: somebody's abort() first, then what is no
// word of a rank, then a timeout, whose consequences the others saw; else what this rank saw, with the silent ranks
// named. Pure.
Error verdict(const Error& seen, int rank, const std::vector<std::optional<Word>>& words,
              const std::vector<std::string>& members);

}  // namespace lockstep
