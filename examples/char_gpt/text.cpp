#include "examples/char_gpt/text.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace {

std::string make_text() {
  constexpr std::array kNumbers = {"zero",     "one",     "two",     "three",     "four",    "five",   "six",
                                   "seven",    "eight",   "nine",    "ten",       "eleven",  "twelve", "thirteen",
                                   "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"};
  std::mt19937 random(1);
  std::string text;
  while (text.size() < 50'000) {
    const auto a = random() % 10, b = random() % 10;
    const char* verb = random() % 2 == 0 ? " is " : " makes ";
    text += std::string("The sum of ") + kNumbers[a] + " and " + kNumbers[b] + verb + kNumbers[a + b] + ".\n";
  }
  return text;
}

}  // namespace

std::string read_or_make_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return make_text();
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Vocabulary::Vocabulary(std::string_view text) : characters_(text) {
  std::sort(characters_.begin(), characters_.end());
  characters_.erase(std::unique(characters_.begin(), characters_.end()), characters_.end());
}

std::vector<std::int64_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int64_t> numbers;
  numbers.reserve(text.size());
  for (const char character : text) {
    const auto found = std::lower_bound(characters_.begin(), characters_.end(), character);
    if (found == characters_.end() || *found != character) {
      throw std::invalid_argument(std::string("the text has no '") + character + "'");
    }
    numbers.push_back(found - characters_.begin());
  }
  return numbers;
}
