// Readers of the examples' command lines.
#pragma once

#include <charconv>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

// Argument `index` as a number of at least `least`; `fallback` if it is missing. Throws std::invalid_argument that
// quotes it if it is not such a number.
template <class Number>
Number number_at(int index, int argc, char** argv, Number fallback, Number least = 1) {
  if (index >= argc) return fallback;
  const std::string_view text = argv[index];
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= least)) {
    throw std::invalid_argument("argument " + std::to_string(index) + ", '" + std::string(text) +
                                "', is not a number of at least " + std::to_string(least));
  }
  return number;
}

// Argument `index`, one of `choices`, of which the first is the default. Throws std::invalid_argument that quotes it
// and lists the choices if it is not.
inline std::string choice_at(int index, int argc, char** argv, std::initializer_list<std::string_view> choices) {
  if (index >= argc) return std::string(*choices.begin());
  std::string all;
  for (const std::string_view choice : choices) {
    if (choice == argv[index]) return argv[index];
    all += std::string(all.empty() ? "" : ", ") + std::string(choice);
  }
  throw std::invalid_argument("argument " + std::to_string(index) + ", '" + argv[index] + "', is not one of " + all);
}
