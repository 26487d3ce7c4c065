// The search for the newest undamaged set. directory -> sets, newest first -> one after the other, until the caller
// accepts one. It finds one even while writers replace and remove sets: if sets disappeared while they were tried, it
// lists them again. Not thread-safe. Blocks for disk I/O. Error{unauthorized}: SignatureCheck; an older set would hide
// it. Error{internal}: the directory, a set or a file cannot be read, for lack of rights, descriptors or a working
// disk. Then nothing is skipped.
#pragma once

#include <cstddef>
#include <cstdint>
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

  // directory: of sets, or a set. least_step: sets of earlier steps are not looked at.
  SetSearch(std::filesystem::path directory, const SignatureCheck& signature, std::uint64_t least_step = 0)
      : directory_(std::move(directory)), signature_(signature), least_step_(least_step) {}

  // The next set with a valid manifest and all files. Another call rejects the set returned last. Logs a warning for
  // each damaged set that it skips.
  std::optional<Found> next();
  // Whether there was any, damaged or not.
  bool has_seen_any() const { return has_seen_any_; }
  // Whether any of them is damaged or was rejected, and not only replaced or removed while it was tried.
  bool has_seen_damaged() const { return !damaged_.empty(); }

 private:
  // Whether another list may show sets that the last one lacks.
  bool is_outdated() const;

  // Of a set's directory: inode, and when it was changed last. Another set of its name has another.
  using Identity = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

  static std::optional<Identity> identity_of(const std::filesystem::path& set);
  void list();
  // Skips sets without a manifest: if there are only such sets, the directory must not look empty.
  void pass_over_parts_alone();
  std::optional<Found> attempt(const std::filesystem::path& set);
  // Whether it is damaged, not just removed.
  bool is_damaged(const std::filesystem::path& set, const Identity& tried);

  const std::filesystem::path directory_;
  const SignatureCheck signature_;
  const std::uint64_t least_step_;
  std::vector<std::filesystem::path> candidates_;
  std::set<Identity> damaged_;
  std::optional<std::pair<std::filesystem::path, Identity>> last_;
  int lists_ = 0;
  bool was_replaced_ = true;  // since it was listed
  bool has_seen_any_ = false;
};

}  // namespace lockstep::internal
