#include "lockstep/formats/pickle_text.h"

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

std::string float_text(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// "cuda:1" of torch.device("cuda", 1); the names of other classes.
std::string object_text(const PickleValue& value) {
  if (value.class_name() != "torch.device" || value.arguments().size() == 0) return std::string(value.class_name());
  const PickleValue arguments = value.arguments();
  const std::string type(arguments.item(0).text());
  return arguments.size() == 1 ? type : fmt::format("{}:{}", type, arguments.item(1).integer());
}

}  // namespace

std::string value_text(const PickleValue& value) {
  switch (value.kind()) {
    case PickleKind::none: return "None";
    case PickleKind::boolean: return value.boolean() ? "True" : "False";
    case PickleKind::integer: return std::to_string(value.integer());
    case PickleKind::number: return float_text(value.number());
    case PickleKind::text: return std::string(value.text());
    case PickleKind::bytes: return hexadecimal(value.text());
    case PickleKind::object: return object_text(value);
    case PickleKind::name: return std::string(value.class_name());
    default: value.refuse(fmt::format("{} is no value that is read", to_string(value.kind())));
  }
}

}  // namespace lockstep::internal
