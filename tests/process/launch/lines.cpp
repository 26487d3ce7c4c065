// Prints `count` numbered lines of varying length to standard output, in blocks that are cut anywhere but at line ends.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int count = std::atoi(argv[1]);
  const std::string rank = std::getenv("RANK");
  std::string text;
  for (int i = 0; i < count; ++i) {
    const auto length = static_cast<std::size_t>(i * 7 % 120);
    text += "rank " + rank + " line " + std::to_string(i) + " " + std::string(length, 'x') + ".\n";
  }
  for (std::size_t sent = 0; sent < text.size();) {
    const std::size_t block = std::min<std::size_t>(1 + sent % 4093, text.size() - sent);
    const ssize_t written = ::write(STDOUT_FILENO, text.data() + sent, block);
    if (written < 0) return 1;
    sent += static_cast<std::size_t>(written);
  }
  return 0;
}
