// Writes checkpoint sets for tests of the tool: set_writer DIRECTORY STEP VERSION WRITERS [LOSS]; or, with "hidden" in
// place of the loss, begins one, says so and waits for its end; or, with "sign", signs it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lockstep/train/checkpoint/signing_key.h"
#include "tests/support/small_set.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  if (argc < 5) return 2;
  testing::SmallSet set{.step = std::strtoull(argv[2], nullptr, 10),
                        .version = std::atoll(argv[3]),
                        .writers = std::atoi(argv[4]),
                        .user = R"({"epoch":3,"list":[1,2.5,null]})"};
  try {
    if (argc > 5 && std::strcmp(argv[5], "hidden") == 0) {
      const internal::SetDirectory hidden(argv[1], set.step);
      testing::write_part(hidden.path(), set, 0);
      std::puts("ready");
      std::fflush(stdout);
      char byte = 0;
      return ::read(STDIN_FILENO, &byte, 1) < 0 ? 1 : 0;
    }
    if (argc > 5 && std::strcmp(argv[5], "sign") == 0) {
      set.digest = DigestKind::sha_256;
      const internal::SigningKey key = internal::SigningKey::of_this_user();
      std::puts(testing::write_set(argv[1], set, &key).c_str());
      return 0;
    }
    if (argc > 5) set.metrics = {{"loss", std::atof(argv[5])}};
    std::puts(testing::write_set(argv[1], set).c_str());
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
