// Values of pickles as text, as Python prints them: "None", "0.1", "cuda:1"; bytes as hexadecimal digits; of what
// Lockstep does not know the name of its class, "<argparse.Namespace>". Pure.
#pragma once

#include <string>

#include "lockstep/formats/pickle_value.h"

namespace lockstep::internal {

// Error{corrupt_data}: a value that holds others, or a tensor.
std::string value_text(const PickleValue& value);

// The key of a dict, which may be a tuple, or anything else: two that are opaque differ by a number. At most a few
// hundred bytes more than a str in it.
std::string dict_key_text(const PickleValue& key);

}  // namespace lockstep::internal
