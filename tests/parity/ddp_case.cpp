#include "tests/parity/ddp_case.h"

#include <sstream>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/parity/support.h"

namespace parity {
namespace {

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

c10::ScalarType type_of(const std::string& name) {
  if (name == "float32") return c10::kFloat;
  if (name == "float16") return c10::kHalf;
  if (name == "bfloat16") return c10::kBFloat16;
  throw lockstep::Error(lockstep::ErrorKind::invalid_argument, "the reference has an unknown type " + name);
}

void set_option(lockstep::DdpOptions& options, const std::string& name, const std::string& value) {
  const bool on = value == "1";
  if (name == "find_unused_parameters") {
    options.find_unused_parameters = on;
  } else if (name == "skip_all_reduce_unused_params") {
    options.skip_all_reduce_unused_params = on;
  } else if (name == "static_graph") {
    options.static_graph = on;
  } else if (name == "bucket_cap_mb") {
    options.bucket_cap_mb = std::stod(value);
  } else if (name == "bucket_cap_mb_list") {
    for (const std::string& cap : parts_of(value, ',')) options.bucket_cap_mb_list.push_back(std::stod(cap));
  } else if (name == "delay_all_reduce_named_params") {
    options.delay_all_reduce_named_params = parts_of(value, ',');
  } else if (name == "mixed_precision") {
    const auto types = parts_of(value, ',');
    options.mixed_precision = {.param_dtype = type_of(types.at(0)), .reduce_dtype = type_of(types.at(1))};
  } else {
    throw lockstep::Error(lockstep::ErrorKind::invalid_argument, "the reference has an unknown option " + name);
  }
}

}  // namespace

DdpCase read_case(const std::map<std::string, std::string>& metadata) {
  DdpCase result{.model = metadata.at("model"),
                 .options = {},
                 .hook = metadata.at("hook"),
                 .accumulate = std::stoll(metadata.at("accumulate")),
                 .momentum = std::stod(metadata.at("momentum")),
                 .tolerance = metadata.at("exact") == "1" ? 0 : kTolerance};
  for (const std::string& option : parts_of(metadata.at("options"), ';')) {
    const auto equals = option.find('=');
    set_option(result.options, option.substr(0, equals), option.substr(equals + 1));
  }
  return result;
}

}  // namespace parity
