#include "lockstep/job/elastic/hello.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace hello_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

Hello hello(const std::string& host, std::vector<std::string> arguments, const std::string& rdzv_id = kDefaultRdzvId) {
  AgentOptions options;
  options.version = "1.0";
  options.rdzv_id = rdzv_id;
  options.machine.most = 2;
  options.program = "train";
  options.arguments = std::move(arguments);
  options.master_port = 4711;
  Hello hello = hello_of(options);
  hello.host = host;
  return hello;
}

std::string why(const std::vector<std::string>& theirs, const std::vector<std::string>& ours,
                const std::string& rdzv_id = kDefaultRdzvId) {
  const AgentMessage read = decode_agent_message(encode(hello("b", theirs, rdzv_id)));
  return objection(std::get<Hello>(read), hello("a", ours, rdzv_id)).value_or("");
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the same command is of one job") {
  CHECK(why({}, {}) == "");
  CHECK(why({"--lr", "0.1"}, {"--lr", "0.1"}) == "");
}

TEST_CASE("other arguments are another job, which is told the first difference and what to do") {
  const std::string text = why({"--lr", "0.2"}, {"--lr", "0.1"});
  CHECK(has(text, "its program has '0.2' as argument 2, and that on the first host a has '0.1' as argument 2"));
  CHECK(has(text, "give it a different --rdzv-id"));
  CHECK(has(text, "give all of its hosts the same --rdzv-id"));
  CHECK(has(why({"a", "b"}, {"a"}), "has 'b' as argument 2, and that on the first host a has no argument 2"));
  CHECK(has(why({}, {"a"}), "has no argument 1"));
  CHECK(has(why({"a\nb"}, {"c"}), "has 'a b' as argument 1"));
  CHECK_FALSE(why({"ab", "c"}, {"a", "bc"}).empty());
}

TEST_CASE("differences behind what is told are found, too") {
  std::vector<std::string> many(1000, "x");
  std::vector<std::string> others = many;
  others.back() = "y";
  CHECK(has(why(others, many), "in a part too long to show"));
  CHECK(has(why({std::string(100'000, 'x') + "1"}, {std::string(100'000, 'x') + "2"}), "in a part too long to show"));
  CHECK(why(many, many) == "");
}

TEST_CASE("hosts that were given one id are of one job whatever their arguments") {
  CHECK(why({"--name", "b"}, {"--name", "a"}, "mine") == "");
}

}  // namespace hello_test
