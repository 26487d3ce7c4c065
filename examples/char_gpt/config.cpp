#include "examples/char_gpt/config.h"

#include <toml++/toml.h>

#include <filesystem>
#include <set>
#include <stdexcept>
#include <string_view>

namespace {

[[noreturn]] void fail(const std::string& path, const toml::source_region& where, const std::string& what) {
  throw std::runtime_error(path + ":" + std::to_string(where.begin.line) + ": " + what);
}

class Section {
 public:
  Section(const std::string& path, const toml::table& table, std::set<std::string, std::less<>> subsections = {})
      : path_(path), table_(table), known_(std::move(subsections)) {}

  void read(std::string_view key, std::string& value) { read_as(key, value, "a string"); }
  void read(std::string_view key, std::int64_t& value) { read_positive(key, value, "a positive integer"); }
  void read(std::string_view key, double& value) { read_positive(key, value, "a positive number"); }

  void refuse_others() const {
    for (const auto& [key, node] : table_) {
      if (!known_.contains(key.str())) fail(path_, node.source(), "'" + std::string(key.str()) + "' is not known");
    }
  }

 private:
  template <class T>
  void read_as(std::string_view key, T& value, const std::string& type) {
    known_.emplace(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return;
    const auto found = node->value<T>();
    if (!found) fail(path_, node->source(), std::string(key) + " is not " + type);
    value = *found;
  }

  template <class T>
  void read_positive(std::string_view key, T& value, const std::string& type) {
    read_as(key, value, type);
    if (!(value > 0)) fail(path_, table_.get(key)->source(), std::string(key) + " is not " + type);
  }

  const std::string& path_;
  const toml::table& table_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace

Config read_config(const std::string& path) {
  if (std::filesystem::is_directory(path))
    throw std::runtime_error(path + " is a directory; the configuration is a file");
  toml::table file;
  try {
    file = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    fail(path, error.source(), std::string(error.description()));
  }
  Config config;
  const toml::table none;
  const auto section = [&](std::string_view name) {
    const toml::node* node = file.get(name);
    if (node == nullptr) return Section(path, none);
    if (!node->is_table()) fail(path, node->source(), std::string(name) + " is a section: [" + std::string(name) + "]");
    return Section(path, *node->as_table());
  };

  Section top(path, file, {"model", "training", "sample"});
  top.read("text", config.text);
  top.read("out", config.out);
  Section model = section("model");
  model.read("layers", config.model.layers);
  model.read("heads", config.model.heads);
  model.read("width", config.model.width);
  model.read("context", config.model.context);
  Section training = section("training");
  training.read("steps", config.training.steps);
  training.read("batch", config.training.batch);
  training.read("warmup_steps", config.training.warmup_steps);
  training.read("save_every", config.training.save_every);
  training.read("seed", config.training.seed);
  training.read("learning_rate", config.training.learning_rate);
  training.read("clip_norm", config.training.clip_norm);
  Section sample = section("sample");
  sample.read("prompt", config.sample.prompt);
  sample.read("characters", config.sample.characters);
  sample.read("temperature", config.sample.temperature);
  for (const Section* each : {&top, &model, &training, &sample}) each->refuse_others();
  return config;
}
