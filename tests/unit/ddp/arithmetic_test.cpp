#include "lockstep/train/ddp/lockstep_mode/arithmetic.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace arithmetic_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::string changes_by(void (*change)(), void (*undo)()) {
  const Arithmetic before = arithmetic_here(1);
  change();
  const Arithmetic now = arithmetic_here(1);
  undo();
  std::string text;
  for (const std::string& line : changes(before, now)) text += line + "\n";
  CHECK(changes(before, arithmetic_here(1)).empty());
  return text;
}

}  // namespace

TEST_CASE("the facts are the same from call to call, whatever the number of threads, and come back from their text") {
  const int threads = at::get_num_threads();
  const std::string expected = text_of(arithmetic_here(1));
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    CHECK(text_of(arithmetic_here(1)) == expected);
    CHECK(at::get_num_threads() == count);
  }
  at::set_num_threads(threads);
  CHECK(text_of(parse_arithmetic(expected)) == expected);
  CHECK(parse_arithmetic("").facts.empty());
  CHECK(parse_arithmetic("no fact\na: b: c").facts == std::vector<std::pair<std::string, std::string>>{{"a", "b: c"}});
  std::set<std::string> names;
  for (const auto& [name, value] : arithmetic_here(2).facts) {
    CHECK(names.insert(name).second);
    CHECK_FALSE(value.empty());
  }
  CHECK(names.contains("OMP_DYNAMIC"));
  CHECK(expected.find("OMP_DYNAMIC") == std::string::npos);
}

TEST_CASE("settings that change bits are facts, and so is what they change") {
  CHECK(changes_by([] { at::globalContext().setUserEnabledMkldnn(false); },
                   [] { at::globalContext().setUserEnabledMkldnn(true); })
            .starts_with("oneDNN in use: yes, now no\n"));
  CHECK(changes_by([] { at::globalContext().setFlushDenormal(true); },
                   [] { at::globalContext().setFlushDenormal(false); }) ==
        "denormal numbers flushed to zero: no, now yes\n");
  CHECK(changes_by(
            [] {
              at::globalContext().setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL,
                                                      at::Float32Precision::BF16);
            },
            [] {
              at::globalContext().setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL,
                                                      at::Float32Precision::NONE);
            })
            .starts_with("float32 in matrix products: none, now bf16\n"));
}

TEST_CASE("facts that only one side knows are changes too") {
  const Arithmetic before{{{"a", "1"}, {"b", "2"}, {"c", "3"}}}, now{{{"b", "2"}, {"a", "4"}, {"d", "5"}}};
  CHECK(changes(before, now) == std::vector<std::string>{"a: 1, now 4", "c: 3, now nothing", "d: nothing, now 5"});
}

}  // namespace arithmetic_test
