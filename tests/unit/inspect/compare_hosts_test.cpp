#include "lockstep/job/inspect/compare_hosts.h"

#include <algorithm>

#include "tests/support/expect_error.h"

namespace compare_hosts_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

HostFindings host(const std::string& name, const std::string& torch, double ahead) {
  return {
      name, {{.subject = "lockstep", .found = "1.0, built"}, {.subject = "torch of Python", .found = torch}}, ahead};
}

Finding find(const Findings& findings, const std::string& subject) {
  const auto found = std::ranges::find(findings, subject, &Finding::subject);
  REQUIRE(found != findings.end());
  return *found;
}

}  // namespace

TEST_CASE("hosts that are alike") {
  const Findings all = compare_hosts({host("a", "2.13.0+cpu /x", -0.3), host("b", "2.13.0+cu128 /y", 0.4)});
  CHECK(find(all, "b: torch of Python").found == "2.13.0+cu128 /y");
  CHECK(find(all, "lockstep on all hosts").found == "the same");
  CHECK(worst_of(all) == Verdict::ok);
}

TEST_CASE("what differs between hosts is a warning") {
  const Findings all =
      compare_hosts({host("a", "2.13.0 /x", 0), host("b", "2.12.1 /x", 2.5), host("c", "2.13.0 /x", -1)});
  CHECK(find(all, "torch of Python on all hosts").found == "a: 2.13.0; b: 2.12.1; c: 2.13.0");
  CHECK(find(all, "torch of Python on all hosts").verdict == Verdict::warning);
  CHECK(find(all, "lockstep on all hosts").verdict == Verdict::ok);
  CHECK(find(all, "clocks of all hosts").verdict == Verdict::warning);
  CHECK(find(all, "clocks of all hosts").found == "the clock of b is 3.5 s ahead of that of c");
}

TEST_CASE("a host that has told nothing is an error") {
  const Findings all = compare_hosts({host("a", "none", 0), {.host = "b"}});
  CHECK(find(all, "b: checks").verdict == Verdict::error);
  CHECK(worst_of(all) == Verdict::error);
}

TEST_CASE("findings go through a line and come back") {
  const Findings findings{{Verdict::warning, "a\nb", "\xff \"x\"", "do"}, {.subject = "c"}};
  const std::string line = line_of(findings);
  CHECK(line.find('\n') == std::string::npos);
  const Findings back = findings_of_line(line);
  REQUIRE(back.size() == 2);
  CHECK(back[0].verdict == Verdict::warning);
  CHECK(back[0].subject == "a\nb");
  CHECK(back[1].subject == "c");
  for (const char* text : {"", "{}", "[[1]]", "[[1,2,3,4]]", "words"}) {
    CHECK_ERROR(error_of([&] { findings_of_line(text); }), ErrorKind::invalid_argument,
                "the report of a host cannot be read");
  }
}

}  // namespace compare_hosts_test
