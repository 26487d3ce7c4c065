// Text as numbers: each character that occurs in a text has one. Values; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// The file's text; if it is missing, sentences of simple arithmetic, always the same.
std::string read_or_make_text(const std::string& path);

class Vocabulary {
 public:
  explicit Vocabulary(std::string_view text);

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  std::vector<std::int64_t> encode(std::string_view text) const;  // std::invalid_argument: an unknown character
  char decode(std::int64_t number) const { return characters_.at(static_cast<std::size_t>(number)); }

 private:
  std::string characters_;  // sorted
};
