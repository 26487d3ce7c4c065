// Finding: what a check of this machine has found, and what to do about it. Values; no I/O.
#pragma once

#include <string>
#include <vector>

namespace lockstep::internal {

enum class Verdict { ok, warning, error };

struct Finding {
  Verdict verdict = Verdict::ok;
  std::string subject = {};  // "shared memory"
  std::string found = {};    // "/dev/shm has 12.0 GiB, 11.8 GiB free"
  std::string remedy = {};   // what to do; empty if nothing is to be done
};

using Findings = std::vector<Finding>;

// "warning  shared memory: /dev/shm has 64 MiB, 64 MiB free", and a second line with the remedy.
std::string text_of(const Findings& findings);
// An object: "verdict", the worst one, and "findings".
std::string json_of(const Findings& findings);
Verdict worst_of(const Findings& findings);
// "12.0 GiB"
std::string bytes_text(double bytes);

}  // namespace lockstep::internal
