// SetDirectory makes a checkpoint set appear as a whole. directory -> hidden directory -> files of all ranks ->
// manifest -> rename. Readers, and a crash of any rank at any moment, see the old set of that step, if there was one,
// or the new one. One process makes it, on behalf of all; others write their files into it. Blocks for disk I/O.
// Error{internal}: the disk is full or failing, or a directory cannot be read. Error{invalid_argument}: the directory
// cannot be created, or something that is not a set has the set's name. Links to the directory are followed; links in
// it are not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep {

// Where the set of a step is: directory/step-0000000400
std::filesystem::path set_path(const std::filesystem::path& directory, std::uint64_t step);

namespace internal {

inline constexpr const char* kManifestName = "manifest.json";

class SetDirectory {
 public:
  // Creates `directory` if needed, and the hidden one in it, both for this user alone. Removes leftovers of killed
  // writers. Only a set is replaced, or one that has lost its manifest: anything else with the set's name is
  // an error.
  SetDirectory(const std::filesystem::path& directory, std::uint64_t step);
  SetDirectory(const SetDirectory&) = delete;
  SetDirectory& operator=(const SetDirectory&) = delete;
  ~SetDirectory();  // removes it, unless it was published

  const std::filesystem::path& path() const { return hidden_; }  // where files are written
  // REQUIRES: all files are there, and synced. Returns where the set is now. before: called when the set is complete on
  // the disk and about to appear; what it throws is thrown, and the set does not appear.
  std::filesystem::path publish(const std::string& manifest, const std::function<void()>& before = {});

 private:
  Error failed_rename(int error) const;
  // Gives the new set its name, and returns the new path of the set that had it; empty if there was none.
  std::filesystem::path take_name() const;
  // Exchanges the new set with an existing one. Empty: another process has removed that one.
  std::optional<std::filesystem::path> exchange() const;

  std::filesystem::path directory_;
  std::filesystem::path target_;
  std::filesystem::path hidden_;
  UniqueFd lock_;  // held as long as its writer lives
};

// Absolute, as the program may go to another directory later; an empty path stays empty.
std::filesystem::path whole_path(const std::filesystem::path& directory);
// Makes the directory, and those above it, for this user alone, where they are missing.
void make_set_parent(const std::filesystem::path& directory);
// The step in a set's name; empty if it is not one of set_path(), as "step-400".
std::optional<std::uint64_t> step_of_set(const std::filesystem::path& path);
struct SetPlace {
  std::uint64_t step = 0;
  std::filesystem::path path;
};
// Directories named as by set_path() that have a manifest, highest step first; also those that a writer replaces
// meanwhile. Error{invalid_argument} if there is no such directory. Error{internal}: it or one in it cannot be read, so
// the list would be incomplete.
std::vector<SetPlace> list_sets(const std::filesystem::path& directory);
// Whether it is a directory of such a name with parts of a set, but no manifest; all those in a directory. True for a
// moment also of a set that a writer removes or replaces. Errors as of list_sets().
bool has_parts_alone(const std::filesystem::path& path);
// Whether it has parts, and nothing else: a set that has lost its manifest, and no file of a user.
bool holds_only_parts(const std::filesystem::path& path);
std::vector<std::filesystem::path> list_parts_alone(const std::filesystem::path& directory);
// Sets that writers have not published, or not removed completely.
struct HiddenSet {
  std::filesystem::path path;
  bool is_abandoned = false;  // its writer is dead
};
std::vector<HiddenSet> list_hidden_sets(const std::filesystem::path& directory);
// Removes sets of dead writers. Ignores errors.
void remove_abandoned_sets(const std::filesystem::path& directory);
// Gives it a hidden name, which is returned, and with which it counts as abandoned. Empty: it does not exist.
std::filesystem::path hide_set(const std::filesystem::path& set);
// No reader ever sees a part of it: it is hidden first. A set that does not exist is no error.
void remove_set(const std::filesystem::path& set);

}  // namespace internal
}  // namespace lockstep
