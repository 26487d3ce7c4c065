#include "lockstep/job/launch/error_text.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

namespace error_text_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

ErrorText text_of(std::initializer_list<const char*> lines) {
  ErrorText text;
  for (const char* line : lines) text.feed(line);
  return text;
}

using Lines = std::deque<std::string>;

}  // namespace

TEST_CASE("an exception that nobody caught is quoted") {
  const ErrorText text = text_of({"epoch 3", "terminate called after throwing an instance of 'std::runtime_error'",
                                  "  what():  no batch 17", "in two lines"});
  CHECK(text.first_line() == "no batch 17");
  CHECK(text_of({"terminate called after throwing an instance of 'int'"}).first_line() ==
        "terminate called after throwing an instance of 'int'");
}

TEST_CASE("stack frames are neither the error nor among the last lines") {
  const ErrorText caught =
      text_of({"training", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
               "Exception raised from meta at ../aten/src/ATen/native/LinearAlgebra.cpp:100 (most recent call first):",
               "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x7c (0x7f in libc10.so)",
               "frame #1: <unknown function> + 0x1 (0x2 in /lib/libtorch_cpu.so)"});
  CHECK(caught.first_line() == "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
  CHECK(caught.last_lines() == Lines{"training", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"});

  const ErrorText uncaught =
      text_of({"terminate called after throwing an instance of 'c10::Error'", "  what():  the first line",
               "the second line", "Exception raised from f at g.cpp:1 (most recent call first):", "frame #0: f + 0x1"});
  CHECK(uncaught.first_line() == "the first line");

  const ErrorText symbolized =
      text_of({"bad shape", "Exception raised from f at g.cpp:1 (most recent call first):", "C++ CapturedTraceback:",
               "#4 std::_Function_handler<void ()> from torch.cpp:0", "#5 main from ??:0"});
  CHECK(symbolized.first_line() == "bad shape");
  CHECK(symbolized.last_lines() == Lines{"bad shape"});
  CHECK_FALSE(is_stack_frame("frame #x"));
  CHECK_FALSE(is_stack_frame("#1 in the list"));
}

TEST_CASE("of a Python program the last exception is quoted") {
  const ErrorText text =
      text_of({"Traceback (most recent call last):", "  File \"a.py\", line 1, in <module>", "    f()",
               "KeyError: 'first'", "", "During handling of the above exception, another exception occurred:", "",
               "Traceback (most recent call last):", "  File \"a.py\", line 3, in <module>", "ValueError: second"});
  CHECK(text.first_line() == "ValueError: second");
}

TEST_CASE("the error of a Python rank is found behind the prefix that PyTorch writes once there is a group") {
  const ErrorText text =
      text_of({"[rank1]: Traceback (most recent call last):", "[rank1]:   File \"a.py\", line 3, in f",
               "[rank1]:     raise ValueError(x)", "[rank1]: ValueError: bad step"});
  CHECK(text.first_line() == "ValueError: bad step");
  CHECK(text.last_lines().back() == "[rank1]: ValueError: bad step");
  const ErrorText of_torch = text_of(
      {"[rank12]: Traceback (most recent call last):", "[rank12]:   File \"a.py\", line 3, in f",
       "[rank12]: RuntimeError: bad shape", "[rank12]: Exception raised from f at g.cpp:1 (most recent call first):",
       "[rank12]: frame #0: f + 0x1 (0x2 in libtorch.so)"});
  CHECK(of_torch.first_line() == "RuntimeError: bad shape");
  CHECK(of_torch.last_lines().back() == "[rank12]: RuntimeError: bad shape");
  for (const char* other : {"[rank]: Traceback (most recent call last):", "[rank1]:Traceback (most recent call last):",
                            "[rank1x]: Traceback (most recent call last):", "[rank1"}) {
    CHECK(text_of({other, "ValueError: no error"}).first_line().empty());
  }
}

TEST_CASE("an error behind which a program goes on was handled") {
  ErrorText text = text_of({"Traceback (most recent call last):", "  File \"a.py\", line 3, in f", "KeyError: 'x'"});
  for (int i = 0; i < 100; ++i) text.feed("frame #1: f + 0x1 (0x2 in libtorch.so)");
  for (std::size_t i = 0; i < ErrorText::kErrorLines; ++i) text.feed("what is said at the end");
  CHECK(text.first_line() == "KeyError: 'x'");
  text.feed("step 1");
  CHECK(text.first_line().empty());
  for (const char* line : {"Traceback (most recent call last):", "ValueError: second"}) text.feed(line);
  CHECK(text.first_line() == "ValueError: second");

  ErrorText long_one =
      text_of({"[rank0]: Traceback (most recent call last):", "[rank0]: CompileError: the first line"});
  for (int i = 0; i < 100; ++i) long_one.feed("[rank0]: one of its other lines");
  CHECK(long_one.first_line() == "CompileError: the first line");
}

TEST_CASE("where nothing is recognised the last lines have to do") {
  ErrorText text;
  for (int i = 0; i < 12; ++i) text.feed("line " + std::to_string(i));
  CHECK(text.first_line().empty());
  CHECK(text.last_lines().size() == ErrorText::kLastLines);
  CHECK(text.last_lines().front() == "line 2");
  text.feed(std::string(5000, 'x'));
  CHECK(text.last_lines().back().size() == ErrorText::kLastLineBytes);
}

}  // namespace error_text_test
