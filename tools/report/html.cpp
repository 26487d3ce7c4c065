#include "tools/report/html.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>

#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestText = 2000;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
constexpr std::string_view kDash = "\xe2\x80\x93";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::string valid_utf8(std::string_view text) {
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return json::parse(quoted).get<std::string>();
}

// How many bytes at the front of a valid text are a character that is not shown as it is; 0: none.
std::size_t hidden_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0) return 2;  // C1
  const std::string_view three = text.substr(0, 3);
  const bool is_embedding = three >= "\xe2\x80\xaa" && three <= "\xe2\x80\xae";
  const bool is_isolate = three >= "\xe2\x81\xa6" && three <= "\xe2\x81\xa9";
  return is_embedding || is_isolate ? 3 : 0;
}

void append_character(std::string& html, char c) {
  switch (c) {
    case '&': html += "&amp;"; break;
    case '<': html += "&lt;"; break;
    case '>': html += "&gt;"; break;
    case '"': html += "&quot;"; break;
    case '\'': html += "&#39;"; break;
    default: html += c;
  }
}

void append_row(std::string& html, const HtmlTable& table, const std::vector<std::string>& row) {
  html += "<tr>";
  for (std::size_t column = 0; column < row.size(); ++column) {
    const char* css_class = column < table.text_columns ? "" : " class=\"n\"";
    if (column == 0) {
      html += fmt::format("<th scope=\"row\">{}</th>", escaped(row[column]));
    } else {
      html += fmt::format("<td{}>{}</td>", css_class, escaped(row[column]));
    }
  }
  html += "</tr>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  const std::size_t bytes = text.size();
  if (bytes > kLongestText) {
    std::size_t end = kLongestText;
    while (end > kLongestText - 4 && is_continuation(text[end])) --end;
    text = text.substr(0, end);
  }
  const std::string valid = valid_utf8(text);
  std::string html;
  for (std::string_view rest = valid; !rest.empty();) {
    const std::size_t hidden = hidden_bytes(rest);
    if (hidden == 0) {
      append_character(html, rest[0]);
    } else if (rest[0] == '\n' || rest[0] == '\t') {
      html += ' ';
    } else {
      html += kReplacement;
    }
    rest.remove_prefix(std::max<std::size_t>(hidden, 1));
  }
  if (bytes > kLongestText) html += fmt::format("\xe2\x80\xa6 ({} bytes)", bytes);
  return html;
}

std::string html_of(const HtmlTable& table) {
  std::string html = "<div class=\"wide\"><table>";
  if (!table.caption.empty()) html += element("caption", "", table.caption);
  html += "\n<thead><tr>";
  for (std::size_t column = 0; column < table.head.size(); ++column) {
    const char* css_class = column < table.text_columns ? "" : " class=\"n\"";
    html += fmt::format("<th scope=\"col\"{}>{}</th>", css_class, escaped(table.head[column]));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) append_row(html, table, row);
  return html + "</tbody></table></div>\n";
}

std::string element(std::string_view tag, std::string_view css_class, std::string_view text) {
  const std::string attribute = css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class);
  return fmt::format("<{}{}>{}</{}>\n", tag, attribute, escaped(text), tag);
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return std::string(kDash);
  const double size = std::abs(value);
  if (size >= 1000 && size < 1e9) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

std::string milliseconds_text(double seconds) {
  const double ms = seconds * 1000;
  if (!std::isfinite(ms)) return std::string(kDash);
  return ms < 1e9 ? fmt::format("{:.2f}", ms) : fmt::format("{:.3g}", ms);
}

std::string percent_text(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : std::string(kDash);
}

std::string utc_text(double seconds_since_1970) {
  if (!std::isfinite(seconds_since_1970) || std::abs(seconds_since_1970) > 1e11) return std::string(kDash);
  const auto whole = static_cast<std::time_t>(seconds_since_1970);
  std::tm time{};
  if (::gmtime_r(&whole, &time) == nullptr) return std::string(kDash);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", time.tm_year + 1900, time.tm_mon + 1, time.tm_mday,
                     time.tm_hour, time.tm_min, time.tm_sec);
}

std::string count_text(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace lockstep::tools
