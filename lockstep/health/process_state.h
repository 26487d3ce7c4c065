// What the kernel tells about another process of this machine. Any thread; reads one small file of /proc.
#pragma once

#include <string_view>

namespace lockstep {

// The letter that ps(1) shows: R runs, S sleeps, D sleeps uninterruptibly, T and t are stopped; 0 if it is not known.
char process_state(int pid);
// "alive", "stopped (by SIGSTOP or the like)"; empty if it is not known.
std::string_view describe_process_state(char state);
bool is_stopped(char state);

}  // namespace lockstep
