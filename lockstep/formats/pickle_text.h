// Values of pickles as text, as Python prints them: "None", "0.1", "cuda:1"; bytes as hexadecimal digits. Pure.
#pragma once

#include <string>

#include "lockstep/formats/pickle_value.h"

namespace lockstep::internal {

// Error{corrupt_data}: a value that holds others, or a tensor.
std::string value_text(const PickleValue& value);

}  // namespace lockstep::internal
