#include "lockstep/job/elastic/host_output.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <string>

namespace host_output_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("lines of one rank a host are whole, also without a prefix") {
  const Pipe pipe = make_pipe("a test", PipeMode::non_blocking);
  const int writer = pipe.writer.get();
  HostOutput output({.prefix = PrefixMode::never, .standard_output = writer, .standard_error = writer}, 1,
                    HostOutput::Way::shown_here);
  const RankStream stream = RankStream::standard_output;
  output.ranks().feed(0, stream, "half a ");
  output.show(stream, "a line of another host\n");
  output.ranks().feed(0, stream, "line\nthe last");
  output.ranks().finish(0, stream);
  output.ranks().write_ready();
  std::array<char, 200> printed;
  const ssize_t size = ::read(pipe.reader.get(), printed.data(), printed.size());
  REQUIRE(size > 0);
  CHECK(std::string(printed.data(), static_cast<std::size_t>(size)) ==
        "a line of another host\nhalf a line\nthe last\n");
}

}  // namespace host_output_test
