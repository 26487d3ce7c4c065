#include "tools/checkpoint_places.h"

#include <algorithm>
#include <system_error>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/step_files.h"
#include "tools/standard_output.h"

namespace lockstep::tools {

using namespace internal;

std::vector<CheckpointPlace> checkpoint_places(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: no such checkpoint or directory", path.string()));
  }
  if (!std::filesystem::is_directory(path, error)) return {{path, step_of(path), "file"}};
  const std::filesystem::path named = path.has_filename() ? path : path.parent_path();
  if (step_of_set(named) || std::filesystem::exists(path / kManifestName, error)) {
    return {{named, step_of_set(named), "set"}};
  }
  if (std::filesystem::exists(path / ".metadata", error)) return {{named, {}, "dcp"}};
  std::vector<CheckpointPlace> places;
  std::filesystem::directory_iterator entries(path, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::error_code vanished;
    const std::filesystem::file_status status = entries->symlink_status(vanished);
    const std::filesystem::path& found = entries->path();
    if (std::filesystem::is_directory(status)) {
      if (const auto step = step_of_set(found)) places.push_back({found, step, "set"});
    } else if (std::filesystem::is_regular_file(status) && !found.filename().string().starts_with('.')) {
      const std::filesystem::path ending = found.extension();
      if (ending == ".safetensors") places.push_back({found, step_of(found), "file"});
      if (ending == ".pt" || ending == ".pth") places.push_back({found, {}, "torch"});
    }
  }
  if (error) throw system_error(fmt::format("listing {}", path.string()), error.value());
  std::ranges::sort(places, [](const CheckpointPlace& a, const CheckpointPlace& b) {
    if (a.step != b.step) return a.step > b.step;  // none is less than any
    return a.path < b.path;
  });
  return places;
}

std::string plain_text(const std::string& text) {
  std::string plain = text;
  for (char& c : plain) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return plain;
}

std::string damage_text(const std::string& why) {
  return (why.starts_with(kNotACheckpoint) ? "" : "DAMAGED: ") + plain_text(why);
}

std::string metrics_text(const std::map<std::string, double>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    text += fmt::format("{}{}={:.6g}", text.empty() ? "" : " ", plain_text(name), value);
  }
  return text.empty() ? "-" : text;
}

std::string shape_text(const SourceTensor& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

void print_json(const nlohmann::json& document) {
  print(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace lockstep::tools
