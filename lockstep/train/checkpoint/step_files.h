// Step files are checkpoints named by training step in one directory. directory -> newest first. Blocks for disk I/O.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace lockstep {

// Where save_checkpoint() puts the file of a step: directory/step-0000000400.safetensors
std::filesystem::path step_path(const std::filesystem::path& directory, std::uint64_t step);

namespace internal {

struct StepFile {
  std::uint64_t step = 0;
  std::filesystem::path path;
};

// The step in a file's name; empty if it is not one of step_path(): "step-400.safetensors" is not, since it cannot be
// found by its step.
std::optional<std::uint64_t> step_of(const std::filesystem::path& path);
// Regular files named as by step_path(), highest step first. Error{invalid_argument} if there is no such directory.
std::vector<StepFile> list_step_files(const std::filesystem::path& directory);
// Error{internal}: it cannot be removed. One that does not exist is no error.
void remove_step_file(const std::filesystem::path& file);
// Removes all but the `count` files of the highest steps, and never `newest_written`, which counts as one of them.
void keep_last_steps(const std::filesystem::path& newest_written, int count);

}  // namespace internal
}  // namespace lockstep
