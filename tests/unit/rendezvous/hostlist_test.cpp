#include "lockstep/comm/rendezvous/hostlist.h"

#include "tests/support/expect_error.h"

namespace hostlist_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using Names = std::vector<std::string>;

std::string reason(const std::string& list) {
  return error_of([&] { expand_hosts(list); }).what();
}

}  // namespace

// feature: J-07
TEST_CASE("lists of hosts as Slurm writes them") {
  CHECK(expand_hosts("n1") == Names{"n1"});
  CHECK(expand_hosts("n1,n2") == Names{"n1", "n2"});
  CHECK(expand_hosts("n[1-3]") == Names{"n1", "n2", "n3"});
  CHECK(expand_hosts("node[01-03,07]") == Names{"node01", "node02", "node03", "node07"});
  CHECK(expand_hosts("n[8-11]") == Names{"n8", "n9", "n10", "n11"});
  CHECK(expand_hosts("n[098-101]") == Names{"n098", "n099", "n100", "n101"});
  CHECK(expand_hosts("n[5]") == Names{"n5"});
  CHECK(expand_hosts("a[1-2],b,c[7,9]") == Names{"a1", "a2", "b", "c7", "c9"});
  CHECK(expand_hosts("rack[1-2]n[1-2]") == Names{"rack1n1", "rack1n2", "rack2n1", "rack2n2"});
  CHECK(expand_hosts("n[1-2]-ib") == Names{"n1-ib", "n2-ib"});
  CHECK(expand_hosts("n[1-2].example.org") == Names{"n1.example.org", "n2.example.org"});
  CHECK(expand_hosts("gpu-a100-[0001-0002]") == Names{"gpu-a100-0001", "gpu-a100-0002"});
  CHECK(expand_hosts("n[1-65536]").size() == 65536);
}

// feature: J-07, Z-21
TEST_CASE("what is no list of hosts is quoted, with the reason") {
  CHECK(contains(reason("n[1-2"), "'n[1-2'"));
  for (const char* list : {"n[1-2", "n1]", "n[[1]]", "]n["}) CHECK(contains(reason(list), "brackets"));
  for (const char* list : {"", ",", "n1,", ",n1", "n1,,n2", "n[]", "n[1,]"}) CHECK(contains(reason(list), "empty"));
  for (const char* list : {"n[a-b]", "n[1-]", "n[-1]", "n[1--2]", "n[ 1]"})
    CHECK(contains(reason(list), "not a number"));
  CHECK(contains(reason("n[2-1]"), "ends before it begins"));
  for (const char* list : {"n[0-65536]", "n[0-18446744073709551615]", "a[1-300]b[1-300]", "a[1-65536],b"}) {
    CHECK(contains(reason(list), "too long"));
  }
}

TEST_CASE("counts for each node") {
  CHECK(expand_counts("2") == std::vector<int>{2});
  CHECK(expand_counts("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  CHECK(expand_counts("16(x2)") == std::vector<int>{16, 16});
  for (const char* list : {"", "2(x", "2(x3", "(x3)", "x", "2(x99999999)", "-1"}) {
    CAPTURE(list);
    CHECK(error_of([&] { expand_counts(list); }).kind() == ErrorKind::invalid_argument);
  }
}

}  // namespace hostlist_test
