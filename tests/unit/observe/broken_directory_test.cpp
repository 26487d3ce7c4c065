// A directory whose listing breaks off half way, as on a damaged disk or a network file system.
#include <dirent.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/observe/flight_file.h"
#include "lockstep/base/observe/flight_memory.h"
#include "lockstep/base/observe/process_recorder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

using namespace lockstep;
using namespace lockstep::internal;

namespace {

thread_local int entries_until_failure = -1;  // -1: it does not fail

}  // namespace

// The library's std::filesystem calls this one.
extern "C" __attribute__((visibility("default"))) dirent* readdir(DIR* directory) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  if (entries_until_failure == 0) {
    errno = EIO;
    return nullptr;
  }
  if (entries_until_failure > 0) --entries_until_failure;
  return real(directory);
}

TEST_CASE("a directory of recordings that cannot be read to its end is an error of ours") {
  const TemporaryDirectory directory;
  for (int rank = 0; rank < 3; ++rank) {
    FlightMemory::make_private({.rank = rank, .world_size = 3}).save(directory / flight_file_name(rank), "");
  }
  CHECK(read_flight_directory(directory.path()).size() == 3);
  for (int entries = 0; entries < 5; ++entries) {
    entries_until_failure = entries;
    const Error error = error_of([&] { read_flight_directory(directory.path()); });
    entries_until_failure = -1;
    CHECK_ERROR(error, ErrorKind::invalid_argument, "cannot read the directory", directory.path(), std::strerror(EIO));
  }
}
