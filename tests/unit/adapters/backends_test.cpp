// Which backends there are, and what is said of one that there is not.
#include "lockstep/comm/adapters/backends.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/support/expect_error.h"

namespace backends_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("the native backend comes first, and supports what all engines do") {
  CHECK(backends().front() == "native");
  CHECK(supports("native", OpKind::all_reduce, ReduceOp::product, DType::c128));
  CHECK_FALSE(supports("native", OpKind::all_reduce, ReduceOp::max, DType::c128));
  CHECK(supports("native", OpKind::broadcast, ReduceOp::max, DType::c128));  // it reduces nothing
}

// feature: A-12
TEST_CASE("no backend reduces what has no meaning, and all move everything") {
  for (const std::string& name : backends()) {
    CHECK_FALSE(supports(name, OpKind::all_reduce, ReduceOp::avg, DType::i32));
    CHECK_FALSE(supports(name, OpKind::reduce_scatter, ReduceOp::bxor, DType::f32));
    CHECK(supports(name, OpKind::all_reduce, ReduceOp::avg, DType::f32));
    CHECK(supports(name, OpKind::all_gather, ReduceOp::sum, DType::opaque));
  }
}

// feature: A-11
TEST_CASE("a backend that is not in this build is refused with those that are") {
  std::string known;
  for (const std::string& name : backends()) known += (known.empty() ? "" : ", ") + name;
  const auto refused = [&](auto&& call, const std::string& start) {
    CHECK_ERROR(error_of(call), ErrorKind::invalid_argument,
                start + " \"ucc\" is not in this build, which has " + known);
  };
  refused([] { choose_backend("ucc"); }, "the backend");
  refused([] { supports("ucc", OpKind::barrier, ReduceOp::sum, DType::f32); }, "the backend");
  refused([] { make_backend_engine("ucc", {}, Deadline::never()); }, "the backend");
  ::setenv("LOCKSTEP_BACKEND", "ucc", 1);
  CHECK_ERROR(error_of([] { choose_backend(""); }), ErrorKind::invalid_argument,
              "LOCKSTEP_BACKEND is 'ucc'; it can be native, gloo, mpi or nccl");
  CHECK(choose_backend("native") == "native");  // who asks by name is not overruled
  ::setenv("LOCKSTEP_BACKEND", "Native", 1);
  CHECK(choose_backend("") == "native");
  ::setenv("LOCKSTEP_BACKEND", "", 1);
  CHECK(choose_backend("").empty());
  ::unsetenv("LOCKSTEP_BACKEND");
  CHECK(choose_backend("").empty());
  CHECK(is_native(""));
  CHECK(is_native("native"));
  CHECK_FALSE(is_native("gloo"));
}

TEST_CASE("a backend whose library was not found is refused with why, and what to do") {
  for (const std::string name : {"gloo", "mpi", "nccl"}) {
    CAPTURE(name);
    if (has_backend(name)) {
      CHECK(choose_backend(name) == name);
    } else {
      const std::string start = "\"" + name + "\" is not in this build, which has native";
      CHECK_ERROR(error_of([&] { choose_backend(name); }), ErrorKind::invalid_argument, start, ": ", "build Lockstep");
    }
  }
}

}  // namespace backends_test
