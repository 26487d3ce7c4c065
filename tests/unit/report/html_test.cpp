#include "tools/report/html.h"

#include <doctest/doctest.h>

#include <string>

#include "tools/report/run_record.h"

namespace html_test {

using namespace lockstep::tools;

TEST_CASE("what means something in HTML is escaped") {
  CHECK(escaped("<script>alert('x' & \"y\")</script>") ==
        "&lt;script&gt;alert(&#39;x&#39; &amp; &quot;y&quot;)&lt;/script&gt;");
  CHECK(escaped("") == "");
  CHECK(escaped("\xc3\xa4 \xf0\x9f\x98\x80") == "\xc3\xa4 \xf0\x9f\x98\x80");
}

TEST_CASE("what cannot be shown is replaced") {
  const std::string replaced = "\xef\xbf\xbd";
  CHECK(escaped(std::string("a\0b", 3)) == "a" + replaced + "b");
  CHECK(escaped("a\x1b[31mb") == "a" + replaced + "[31mb");
  CHECK(escaped("a\nb\tc") == "a b c");
  CHECK(escaped("a\xff") == "a" + replaced);
  CHECK(escaped("\xc2\x9b") == replaced);
  CHECK(escaped("\xc2\xa0") == "\xc2\xa0");
  CHECK(escaped("x\xe2\x80\xaey\xe2\x81\xa6z") == "x" + replaced + "y" + replaced + "z");
  CHECK(escaped("\xe2\x80\xa9\xe2\x80\xaf") == "\xe2\x80\xa9\xe2\x80\xaf");
}

TEST_CASE("a long text is cut between characters, with its length") {
  std::string text = "x";
  for (int i = 0; i < 2000; ++i) text += "\xc3\xa4";
  const std::string html = escaped(text);
  CHECK(html.size() < 2100);
  CHECK(html.find("\xef\xbf\xbd") == std::string::npos);
  CHECK(html.find("(4001 bytes)") != std::string::npos);
}

TEST_CASE("a table has headings of rows and columns, and escapes all of it") {
  const std::string html = html_of(HtmlTable{.caption = "<c>", .head = {"<h>", "n"}, .rows = {{"<r>", "<1>"}}});
  CHECK(html.find("<caption>&lt;c&gt;</caption>") != std::string::npos);
  CHECK(html.find("<th scope=\"col\">&lt;h&gt;</th><th scope=\"col\" class=\"n\">n</th>") != std::string::npos);
  CHECK(html.find("<th scope=\"row\">&lt;r&gt;</th><td class=\"n\">&lt;1&gt;</td>") != std::string::npos);
}

TEST_CASE("numbers") {
  CHECK(number_text(0.123456) == "0.1235");
  CHECK(number_text(12345.6) == "12346");
  CHECK(number_text(kUnknown) == "\xe2\x80\x93");
  CHECK(milliseconds_text(0.0123456) == "12.35");
  CHECK(milliseconds_text(1e300) == "1e+303");
  CHECK(percent_text(0.5) == "50.0 %");
  CHECK(utc_text(1795632021) == "2026-11-25 18:40:21 UTC");
  CHECK(utc_text(1e300) == "\xe2\x80\x93");
  CHECK(count_text(1, "line") == "1 line");
  CHECK(count_text(2, "line") == "2 lines");
}

}  // namespace html_test
