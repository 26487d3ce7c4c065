#include "lockstep/comm/store/store_text.h"

#include <doctest/doctest.h>

namespace store_text_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("ranks are listed as a person would") {
  CHECK(list_ranks({3}) == "rank 3");
  CHECK(list_ranks({0, 2}) == "ranks 0 and 2");
  CHECK(list_ranks({0, 2, 5}) == "ranks 0, 2 and 5");
  CHECK(list_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST_CASE("keys in messages are short and printable") {
  CHECK(quote_key("a/b") == "'a/b'");
  CHECK(quote_key(std::string_view("a\0\n", 3)) == "'a\\x00\\x0a'");
  CHECK(quote_key(std::string(5000, 'k')).size() == 85);
  CHECK(list_keys(std::vector<std::string>(10, "k")) == "'k', 'k', 'k', 'k', 'k', 'k', 'k', 'k' and 2 more");
}

}  // namespace store_text_test
