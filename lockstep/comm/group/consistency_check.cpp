#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/hash.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep {

using namespace internal;

namespace {

// The line that begins there, without its end.
std::string line_at(const std::string& text, std::size_t begin) {
  return begin >= text.size() ? "nothing" : text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

std::optional<ProcessGroup::Difference> ProcessGroup::first_difference(const std::string& mine) const {
  const std::vector<std::uint64_t> hashes = all_gather_object(hash_of(mine));
  if (std::ranges::all_of(hashes, [&](std::uint64_t hash) { return hash == hashes[0]; })) return std::nullopt;
  const std::vector<std::string> all = all_gather_bytes(*this, mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [ours, theirs] = std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end());
    const std::string same(all[0].begin(), ours);
    const std::size_t begin = same.rfind('\n') + 1;  // 0 if there is none
    return Difference{.rank = static_cast<int>(rank),
                      .line = static_cast<std::size_t>(std::ranges::count(same, '\n')),
                      .on_rank_0 = line_at(all[0], begin),
                      .on_rank = line_at(all[rank], begin)};
  }
  return std::nullopt;
}

}  // namespace lockstep
