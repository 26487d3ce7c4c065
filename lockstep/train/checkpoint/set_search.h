// The search for the set that is loaded: the newest whole one. directory -> sets, newest first -> one after the other,
// until the caller is content. Beside writers that replace and remove sets it does not end while there is a whole one:
// where sets went away while they were tried, it lists them again. Not thread-safe. Blocks for disk I/O.
// Error{unauthorized}: SignatureCheck; going back to an older set would hide it. Error{internal}: the directory, a set
// or a file cannot be looked into, for lack of rights, descriptors or a working disk. Then nothing is passed over.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/train/checkpoint/signature_check.h"

namespace lockstep::internal {

class SetSearch {
 public:
  static constexpr int kMostLists = 1000;

  struct Found {
    std::filesystem::path path;
    Bytes manifest;
  };

  // directory: of sets, or a set.
  SetSearch(std::filesystem::path directory, const SignatureCheck& signature)
      : directory_(std::move(directory)), signature_(signature) {}

  // The next one whose manifest is right and whose files are there. Another call says that it was of no use. Logs a
  // warning for each damaged one that it passes over.
  std::optional<Found> next();
  // Whether there was any, whole or not.
  bool has_seen_any() const { return has_seen_any_; }
  // Whether any of them is damaged, or was of no use, and not only replaced or removed while it was tried.
  bool has_seen_damaged() const { return !damaged_.empty(); }

 private:
  // Whether another list may show what the last one does not.
  bool is_outdated() const;

  // Of a set's directory: inode, and when it was changed last. Another set of its name has another.
  using Identity = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

  static std::optional<Identity> identity_of(const std::filesystem::path& set);
  void list();
  // Sets that have lost their manifest: where there is no other, that must not look like a directory without any.
  void pass_over_parts_alone();
  std::optional<Found> attempt(const std::filesystem::path& set);
  // Whether it is damaged, and not just away.
  bool is_damaged(const std::filesystem::path& set, const Identity& tried);

  const std::filesystem::path directory_;
  const SignatureCheck signature_;
  std::vector<std::filesystem::path> candidates_;
  std::set<Identity> damaged_;
  std::optional<std::pair<std::filesystem::path, Identity>> last_;
  int lists_ = 0;
  bool was_replaced_ = true;  // since it was listed
  bool has_seen_any_ = false;
};

}  // namespace lockstep::internal
