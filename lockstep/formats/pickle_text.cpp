#include "lockstep/formats/pickle_text.h"

#include <cmath>
#include <iterator>

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

// "/data/x" of its parts, the first of which may be a root.
std::string path_text(const PickleValue& parts, char separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts.item(i).is(PickleKind::text)) return "";
    const bool has_separator = text.empty() || text.back() == separator;
    text +=
        fmt::format("{}{}", has_separator ? std::string_view() : std::string_view(&separator, 1), parts.item(i).text());
  }
  return text.empty() ? "." : text;
}

// "(1+2j)", "1j": as Python prints it, a whole number without ".0".
std::string complex_text(const PickleValue& parts) {
  double numbers[2] = {};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == std::size(numbers) || !parts.item(i).is(PickleKind::number)) return "";
    numbers[i] = parts.item(i).number();
  }
  const auto [real, imaginary] = numbers;
  if (real == 0 && !std::signbit(real)) return fmt::format("{}j", imaginary);
  return fmt::format("({}{:+}j)", real, imaginary);
}

std::string device_text(const PickleValue& parts) {
  if (parts.size() == 0 || !parts.item(0).is(PickleKind::text)) return "";
  const std::string type(parts.item(0).text());
  if (parts.size() == 1) return type;
  return parts.item(1).is(PickleKind::integer) ? fmt::format("{}:{}", type, parts.item(1).integer()) : "";
}

// Python's text of it, if that is more than the name of its class; empty otherwise.
std::string object_text(const PickleValue& value) {
  const std::string_view name = value.class_name();
  const PickleValue arguments = value.arguments();
  if (name == "torch.device" || name == "torch.serialization._get_layout") return device_text(arguments);
  if (name.starts_with("pathlib.")) return path_text(arguments, name.find("Windows") != name.npos ? '\\' : '/');
  if (name == "builtins.complex" || name == "__builtin__.complex") return complex_text(arguments);
  return "";
}

void append_key(const PickleValue& key, std::string& text) {
  constexpr std::size_t kMostBytes = 512;
  if (text.size() > kMostBytes) return;
  switch (key.kind()) {
    case PickleKind::tuple:
    case PickleKind::set:
      text += '(';
      for (std::size_t i = 0; i < key.size() && text.size() <= kMostBytes; ++i) {
        if (i > 0) text += ", ";
        append_key(key.item(i), text);
      }
      text += ')';
      return;
    case PickleKind::list:
    case PickleKind::dict:
    case PickleKind::tensor:
    case PickleKind::storage: text += fmt::format("<{} {}>", to_string(key.kind()), key.number_in_tree()); return;
    case PickleKind::opaque: text += fmt::format("<{} {}>", key.class_name(), key.number_in_tree()); return;
    default: text += value_text(key);
  }
}

}  // namespace

std::string value_text(const PickleValue& value) {
  switch (value.kind()) {
    case PickleKind::none: return "None";
    case PickleKind::boolean: return value.boolean() ? "True" : "False";
    case PickleKind::integer:
    case PickleKind::large_integer: return value.digits();
    case PickleKind::number: return float_text(value.number());
    case PickleKind::text: return std::string(value.text());
    case PickleKind::bytes: return hexadecimal(value.text());
    case PickleKind::object: {
      const std::string text = object_text(value);
      return text.empty() ? std::string(value.class_name()) : text;
    }
    case PickleKind::name: return std::string(value.class_name());
    case PickleKind::opaque: return fmt::format("<{}>", value.class_name());
    default: value.refuse(fmt::format("{} cannot be read as a value", to_string(value.kind())));
  }
}

std::string dict_key_text(const PickleValue& key) {
  std::string text;
  append_key(key, text);
  return text;
}

}  // namespace lockstep::internal
