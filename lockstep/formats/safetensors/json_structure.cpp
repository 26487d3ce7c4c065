#include "lockstep/formats/safetensors/json_structure.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/formats/safetensors/safetensors_header.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;

// Events of the parser; false ends it.
class StructureEvents {
 public:
  explicit StructureEvents(int most_depth) : most_depth_(most_depth) {}

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(Json::number_integer_t) { return true; }
  bool number_unsigned(Json::number_unsigned_t) { return true; }
  bool number_float(Json::number_float_t, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(Json::binary_t&) { return true; }
  bool start_array(std::size_t) { return begin(); }
  bool end_array() { return end(); }
  bool start_object(std::size_t) { return begin(); }
  bool end_object() { return end(); }
  bool key(std::string& name) {
    return names_.back().insert(name).second || fail("the name " + shown(name) + " appears twice");
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) {
    return fail(std::string("it is not JSON: ") + error.what());
  }

  std::string take_problem() { return std::move(problem_); }

 private:
  bool begin() {
    names_.emplace_back();
    return static_cast<int>(names_.size()) <= most_depth_ || fail("its values are nested too deeply");
  }
  bool end() {
    names_.pop_back();
    return true;
  }
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  int most_depth_;
  std::vector<std::set<std::string>> names_;  // so far, in each object around the current place; none in a list
  std::string problem_;
};

}  // namespace

std::string problem_of_json(ByteView json, int most_depth) {
  if (longest_token(json) > SafetensorsLimits::kTokenBytes) return "a string or number in it is too long";
  if (json.find('\0') != ByteView::npos) return "it contains a zero byte";
  StructureEvents events(most_depth);
  Json::sax_parse(json, &events);
  return events.take_problem();
}

}  // namespace lockstep::internal
