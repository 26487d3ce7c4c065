// A command's output arrives, or the command fails: a full disk, a reader that has gone and a closed standard output
// are no success. For all commands but a job's launcher, whose ranks are worth more than their output.
#pragma once

#include <string>

namespace lockstep::tools {

// Call before anything is opened: a file must not take the place of a standard descriptor that is closed, and a pipe
// without a reader is an error of writing and not the end of this process. Programs that it starts see none of that.
void prepare_standard_output();

// At once. Returns whether that went well; end_standard_output() says so in any case.
bool print(const std::string& text);

// Call last, with the command's exit code. Returns that, or `failed`, with a message on standard error, if some of the
// output could not be written.
int end_standard_output(int code, int failed);

}  // namespace lockstep::tools
