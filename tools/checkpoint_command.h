// `lockstep checkpoint`: lists, shows, verifies, compares, converts and removes checkpoints. None of it needs torch.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "lockstep/train/checkpoint/retention.h"

namespace lockstep::tools {

struct CheckpointOptions {
  std::string path;
  std::string other;  // the second one of diff; where convert and strip-prefix write
  std::string to;     // the kind of that, "file" or "set"; empty: by its name
  std::string prefix;
  std::string add_prefix;
  double tolerance = 0;
  std::string token_file;
  Retention rules;
  bool require_signature = false;
  bool force = false;
  bool dry_run = false;
  bool json = false;
};
CLI::App* add_checkpoint(CLI::App& app, CheckpointOptions& options);
// Exit code of the parsed command: 0, or 1 and the error on standard error. diff: 1 if they differ, 2 for an error.
int checkpoint_command(const CLI::App& checkpoint, const CheckpointOptions& options);

// One function for each; Error of what they read and write.
int list_checkpoints(const CheckpointOptions& options);
int show_checkpoint(const CheckpointOptions& options);
int verify_checkpoints(const CheckpointOptions& options);
int diff_checkpoints(const CheckpointOptions& options);
int convert_checkpoint(const CheckpointOptions& options);
int rename_tensors(const CheckpointOptions& options);
int prune_checkpoints(const CheckpointOptions& options);

}  // namespace lockstep::tools
