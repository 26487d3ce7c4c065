// torchrun's templates, in which ${local_rank} stands for a value. Pure.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::internal {

// `text` with each "${name}" replaced; what the value holds is not looked at again.
inline std::string fill_in(std::string text, const std::string& name, const std::string& value) {
  const std::string place = "${" + name + "}";
  for (std::size_t at = text.find(place); at != std::string::npos; at = text.find(place, at + value.size())) {
    text.replace(at, place.size(), value);
  }
  return text;
}

}  // namespace lockstep::internal
