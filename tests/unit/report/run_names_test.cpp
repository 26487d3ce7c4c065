#include "tools/report/run_names.h"

#include <doctest/doctest.h>

#include "tests/support/expect_error.h"

namespace run_names_test {

using namespace lockstep;
using namespace lockstep::tools;

using Names = std::vector<std::string>;

TEST_CASE("names are as short as they can be and differ") {
  CHECK(names_of_runs({"/a/one"}) == Names{"one"});
  CHECK(names_of_runs({"/a/one", "/a/two/"}) == Names{"one", "two"});
  CHECK(names_of_runs({"/a/out", "/b/out", "/b/other"}) == Names{"a/out", "b/out", "other"});
  CHECK(names_of_runs({"/x/a/out", "/y/a/out", "/z/b/out"}) == Names{"x/a/out", "y/a/out", "b/out"});
  CHECK(names_of_runs({"/out", "/a/out"}) == Names{"out", "a/out"});
  CHECK(names_of_runs({"/"}) == Names{"root"});
}

TEST_CASE("a run that is named twice is refused") {
  CHECK_ERROR(error_of([] {
                names_of_runs({"/a/b", "/c", "/a/b"});
              }),
              ErrorKind::invalid_argument, "the run /a/b is given twice");
}

}  // namespace run_names_test
