// What torch throws becomes an Error, so that callers of the library have one exception type to think of.
#pragma once

#include <c10/util/Exception.h>

#include <new>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::internal {

// Runs code that calls torch. An Error passes; torch's own and a lack of memory become one of `kind`.
template <class Run>
decltype(auto) as_errors(std::string_view operation, ErrorKind kind, Run&& run) {
  const auto error = [&](std::string_view why) {
    const std::string name(operation);
    return Error(kind, name + ": " + std::string(why), {.operation = name});
  };
  try {
    return run();
  } catch (const c10::Error& failure) {
    throw error(failure.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw error("there is not enough memory");
  }
}

}  // namespace lockstep::internal
