// Pieces of an HTML page. Text that comes from files, paths and command lines goes through escaped(), here and nowhere
// else; what takes "text" below does that itself. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

// For text and for attributes in quotes. Control characters, those that turn the direction of writing, and what is not
// UTF-8 become U+FFFD; of a long text only the beginning is kept, with its length.
std::string escaped(std::string_view text);

struct HtmlTable {
  std::string caption = {};
  std::vector<std::string> head = {};
  std::vector<std::vector<std::string>> rows = {};  // text; the first of a row is its heading
  std::size_t text_columns = 1;                     // the others are numbers
};
std::string html_of(const HtmlTable& table);
// Text in an element: element("p", "none", "no steps")
std::string element(std::string_view tag, std::string_view css_class, std::string_view text);

// "0.1235", "1.2e+07"; a dash for what is not known
std::string number_text(double value);
std::string milliseconds_text(double seconds);
std::string percent_text(double share);
std::string utc_text(double seconds_since_1970);
// "1 line", "2 lines"
std::string count_text(std::uint64_t count, std::string_view noun);

}  // namespace lockstep::tools
