#include "lockstep/formats/safetensors/safetensors_parser.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

// Parser events drive a small state machine that holds only finished entries: no document tree is built, so that a
// header of 16 MiB of brackets costs no more memory than its text. A method that returns false ends the parse.
class HeaderEvents {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  SafetensorsHeader take() { return std::move(header_); }
  const std::string& problem() const { return problem_; }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) { return unexpected("the number " + text.substr(0, 40)); }
  bool binary(binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (state_ == State::shape) {
      if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail(fmt::format("tensor {} has the invalid dimension {}", shown(entry_.name), value));
      }
      if (entry_.shape.size() == SafetensorsLimits::kDimensions) {
        return fail(fmt::format("tensor {} has more than {} dimensions", shown(entry_.name), entry_.shape.size()));
      }
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::offsets && offsets_read_ < 2) {
      (offsets_read_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) {
    if (state_ == State::dtype) {
      entry_.dtype = std::move(value);
      state_ = State::entry;
      return true;
    }
    if (state_ == State::metadata_value) {
      header_.metadata.emplace(std::move(key_), std::move(value));
      state_ = State::metadata;
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(std::size_t) {
    switch (state_) {
      case State::start: state_ = State::top; return true;
      case State::entry_value: state_ = State::entry; return true;
      case State::metadata_start: state_ = State::metadata; return true;
      default: return unexpected("an object");
    }
  }

  bool key(string_t& name) {
    switch (state_) {
      case State::top: return top_key(name);
      case State::entry: return entry_key(name);
      case State::metadata:
        if (header_.metadata.contains(name)) return fail(fmt::format("metadata {} appears twice", shown(name)));
        if (!count_entry()) return false;
        key_ = std::move(name);
        state_ = State::metadata_value;
        return true;
      default: return unexpected("a key");
    }
  }

  bool end_object() {
    if (state_ == State::entry) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        return fail(fmt::format("tensor {} lacks dtype, shape or data_offsets", shown(entry_.name)));
      }
      header_.tensors.push_back(std::move(entry_));
    }
    state_ = state_ == State::top ? State::end : State::top;
    return true;
  }

  bool start_array(std::size_t) {
    if (state_ == State::shape_start) {
      state_ = State::shape;
      return true;
    }
    if (state_ == State::offsets_start) {
      state_ = State::offsets;
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() {
    if (state_ == State::offsets && offsets_read_ != 2) {
      return fail(fmt::format("tensor {} has {} data_offsets, expected 2", shown(entry_.name), offsets_read_));
    }
    state_ = State::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return fail(fmt::format("it is not JSON: syntax error at its byte {}", position));
  }

 private:
  enum class State {
    start,
    top,
    entry_value,
    entry,
    dtype,
    shape_start,
    shape,
    offsets_start,
    offsets,
    metadata_start,
    metadata,
    metadata_value,
    end,
  };

  bool fail(std::string text) {
    problem_ = std::move(text);
    return false;
  }
  bool unexpected(const std::string& what) {
    const bool in_tensor = state_ >= State::entry_value && state_ <= State::offsets;
    return fail(fmt::format("{} is not allowed {}", what,
                            in_tensor ? fmt::format("in tensor {}", shown(entry_.name)) : "outside the tensors"));
  }
  bool count_entry() {
    if (++entries_ <= SafetensorsLimits::kEntries) return true;
    return fail(fmt::format("it has more than {} entries", SafetensorsLimits::kEntries));
  }

  bool top_key(string_t& name) {
    if (!count_entry()) return false;
    if (name == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) return fail("the metadata appears twice");
      state_ = State::metadata_start;
      return true;
    }
    entry_ = TensorEntry{.name = std::move(name)};
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offsets_read_ = 0;
    state_ = State::entry_value;
    return true;
  }

  bool entry_key(const string_t& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &has_dtype_;
      state_ = State::dtype;
    } else if (name == "shape") {
      seen = &has_shape_;
      state_ = State::shape_start;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      state_ = State::offsets_start;
    } else {
      return fail(fmt::format("tensor {} has the unknown key {}", shown(entry_.name), shown(name)));
    }
    if (std::exchange(*seen, true)) return fail(fmt::format("tensor {} has '{}' twice", shown(entry_.name), name));
    return true;
  }

  State state_ = State::start;
  SafetensorsHeader header_;
  TensorEntry entry_;
  std::string key_;
  std::string problem_;
  std::size_t entries_ = 0;
  int offsets_read_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

}  // namespace

std::string shown(std::string_view name) {
  constexpr std::size_t kShown = 200;
  std::string text = "'";
  for (const char c : name.substr(0, kShown)) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    text.push_back(is_control ? '?' : c);
  }
  return text + (name.size() > kShown ? "...'" : "'");
}

std::size_t longest_token(ByteView json) {
  constexpr std::string_view kBetweenTokens = "{}[],: \t\r\n";
  std::size_t longest = 0;
  std::size_t length = 0;
  bool in_string = false;
  bool is_escaped = false;
  for (const char c : json) {
    if (in_string) {
      in_string = c != '"' || is_escaped;
      is_escaped = c == '\\' && !is_escaped;
    } else if (kBetweenTokens.find(c) != std::string_view::npos) {
      length = 0;
      continue;
    } else {
      in_string = c == '"';
    }
    longest = std::max(longest, ++length);
  }
  return longest;
}

SafetensorsHeader parse_safetensors_json(ByteView json) {
  HeaderEvents events;
  std::string problem;
  if (!json.starts_with('{')) {
    problem = "it does not begin with a brace";
  } else if (json.find('\0') != ByteView::npos) {
    problem = "it contains a zero byte";  // which the parser would take for the end of the text
  } else if (longest_token(json) > SafetensorsLimits::kTokenBytes) {
    problem = fmt::format("it has a string or number of more than {} bytes", SafetensorsLimits::kTokenBytes);
  } else if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) {
    problem = events.problem();
  }
  if (!problem.empty()) throw Error(ErrorKind::corrupt_data, "safetensors header: " + problem);
  return events.take();
}

}  // namespace lockstep::internal
