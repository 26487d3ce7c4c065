// What is in a file of torch.save, in the words of torch_oracle.py: a line per value.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cstdio>
#include <string>

#include "lockstep/formats/pickle_text.h"
#include "lockstep/formats/torch_file.h"

namespace lockstep::testing {

inline std::string hex(std::string_view bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

inline std::string read_tensor(const TorchFile& file, const PickleValue& value) {
  const TorchTensor tensor = file.tensor(value);
  std::string bytes(tensor.bytes, '\0');
  file.read(tensor, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

inline std::string described(const TorchFile& file, const PickleValue& value) {
  switch (value.kind()) {
    case PickleKind::none: return "None";
    case PickleKind::boolean: return value.boolean() ? "bool 1" : "bool 0";
    case PickleKind::integer:
    case PickleKind::large_integer: return "int " + value.digits();
    case PickleKind::number: {
      char digits[17];
      std::snprintf(digits, sizeof digits, "%016llx",
                    static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(value.number())));
      return std::string("float ") + digits;
    }
    case PickleKind::text: return "str " + hex(value.text());
    case PickleKind::bytes: return "bytes " + hex(value.text());
    case PickleKind::name: return "name " + std::string(value.class_name());
    case PickleKind::object: return "object " + internal::value_text(value);
    case PickleKind::opaque: return "opaque " + std::string(value.class_name());
    case PickleKind::storage:
    case PickleKind::tensor: {
      const TorchTensor tensor = file.tensor(value);
      std::string shape;
      for (const std::int64_t size : tensor.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
      return "tensor " + tensor.dtype + " [" + shape + "] " + (tensor.requires_grad ? "1" : "0") +
             (tensor.is_parameter ? "1 " : "0 ") + hex(read_tensor(file, value));
    }
    default: return std::string(to_string(value.kind()));
  }
}

inline std::string description(const TorchFile& file) {
  std::string text;
  for (const NamedPickleValue& each : flatten(file.root())) {
    text += each.name + " " + described(file, each.value) + "\n";
  }
  return text;
}

}  // namespace lockstep::testing
