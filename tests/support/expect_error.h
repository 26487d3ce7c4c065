// Runs `call`, expects it to throw lockstep::Error, and hands that back for checks of its kind and text.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

template <typename Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  FAIL("expected an Error, but the call returned");
  return Error(ErrorKind::internal, "");
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace lockstep

// The error has this kind and its text contains each part; the text is shown if not.
#define CHECK_ERROR(error, expected_kind, ...)                              \
  do {                                                                      \
    const ::lockstep::Error seen_error = (error);                           \
    const std::string seen_text = seen_error.what();                        \
    CAPTURE(seen_text);                                                     \
    CHECK(seen_error.kind() == (expected_kind));                            \
    for (const std::string& part : std::vector<std::string>{__VA_ARGS__}) { \
      CAPTURE(part);                                                        \
      CHECK(::lockstep::contains(seen_text, part));                         \
    }                                                                       \
  } while (false)
