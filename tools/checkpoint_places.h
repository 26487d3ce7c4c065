// Which checkpoints a path stands for: itself, or those in a directory. path -> places, newest first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/tensor_source.h"

namespace lockstep::tools {

struct CheckpointPlace {
  std::filesystem::path path;
  std::optional<std::uint64_t> step;  // that its name says
  std::string kind;                   // "set", "file", "torch", "dcp"
};

// A set, a file or a directory of torch.distributed.checkpoint itself; in another directory, entries named like a set
// or ending with .safetensors, .pt or .pth, without links. Those with a step first. Error{invalid_argument}: no such
// path.
std::vector<CheckpointPlace> checkpoint_places(const std::filesystem::path& path);

// For messages and tables: without control characters, which a file's strings may have.
std::string plain_text(const std::string& text);
// For tables, if a checkpoint cannot be opened: "DAMAGED: ...", or kNotACheckpoint for another kind of file.
inline constexpr const char* kNotACheckpoint = "not a checkpoint";
std::string damage_text(const std::string& why);
std::string metrics_text(const std::map<std::string, double>& metrics);
std::string shape_text(const SourceTensor& tensor);  // "F32 [10, 4]"
void print_json(const nlohmann::json& document);

}  // namespace lockstep::tools
