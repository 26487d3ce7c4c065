#include "lockstep/job/launch/line_splitter.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace line_splitter_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::vector<std::string> split_in_blocks(std::string_view text, std::size_t block) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto keep = [&lines](std::string_view line) { lines.emplace_back(line); };
  for (std::size_t at = 0; at < text.size(); at += block) splitter.feed(text.substr(at, block), keep);
  splitter.finish(keep);
  return lines;
}

}  // namespace

TEST_CASE("lines do not depend on where the stream is cut") {
  const std::string text = "one\n\ntwo three\nfour";
  for (std::size_t block = 1; block <= text.size(); ++block) {
    CHECK(split_in_blocks(text, block) == std::vector<std::string>{"one", "", "two three", "four"});
  }
  CHECK(split_in_blocks("", 1).empty());
  CHECK(split_in_blocks("a\n", 2) == std::vector<std::string>{"a"});
}

TEST_CASE("a line of the greatest length is whole, a longer one comes in pieces that lose nothing") {
  constexpr std::size_t kMax = LineSplitter::kMaxLineBytes;
  for (const std::size_t block : {std::size_t{1000}, kMax, kMax + 1, 3 * kMax}) {
    CHECK(split_in_blocks(std::string(kMax, 'x') + "\ny", block) ==
          std::vector{std::string(kMax, 'x'), std::string("y")});
    const std::vector<std::string> pieces = split_in_blocks(std::string(2 * kMax + 5, 'x') + "\ny\n", block);
    REQUIRE(pieces.size() == 4);
    CHECK(pieces[0].size() == kMax);
    CHECK(pieces[1].size() == kMax);
    CHECK(pieces[2] == "xxxxx");
    CHECK(pieces[3] == "y");
  }
}

TEST_CASE("what a terminal shows of a line is what stands behind the last carriage return") {
  CHECK(visible_text("plain") == "plain");
  CHECK(visible_text("10%\r20%") == "20%");
  CHECK(visible_text("10%\r20%\r") == "20%");
  CHECK(visible_text("text\r\r") == "text");
  CHECK(visible_text("\r") == "");
  CHECK(visible_text("") == "");
}

TEST_CASE("a progress bar that never ends its line does not pile up") {
  LineSplitter splitter;
  const auto none = [](std::string_view) { FAIL("no line is complete"); };
  for (int i = 0; i < 100000; ++i) {
    splitter.feed("progress\r", none);
    splitter.drop_overwritten();
  }
  CHECK(splitter.partial() == "progress\r");
  splitter.feed("\rdone", none);
  splitter.drop_overwritten();
  CHECK(splitter.partial() == "done");
}

}  // namespace line_splitter_test
