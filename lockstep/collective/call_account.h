// A CallAccount is what ranks tell each other, in words, once they have found that they came with different calls: what
// their signatures only have hashes of, and what failed on a rank before, which is often why. Values; pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep {

struct CallAccount {
  std::string name = {};     // of the data; empty: nameless
  std::string failure = {};  // see FailureNote; empty: nothing
};

// As it travels; longer texts are cut.
inline constexpr std::size_t kAccountBytes = 1024;
void encode(const CallAccount& account, std::span<std::byte, kAccountBytes> bytes);
// Of whatever bytes: what is no text becomes one.
CallAccount decode_account(std::span<const std::byte, kAccountBytes> bytes);

// A text of another rank's, up to its end or zero, with everything that cannot be printed replaced.
std::string printable(std::span<const char> field);

}  // namespace lockstep
