#include "lockstep/comm/group/objects.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

struct Score {
  std::string name;
  int points = 0;
};

std::string text_of(int rank) {
  return std::string(static_cast<std::size_t>(rank) * 30'000, static_cast<char>('a' + rank));
}

}  // namespace

template <>
struct lockstep::ObjectCodec<Score> {
  static std::string encode(const Score& score) { return std::to_string(score.points) + " " + score.name; }
  static Score decode(std::string_view bytes) {
    const auto space = bytes.find(' ');
    return {std::string(bytes.substr(space + 1)), std::stoi(std::string(bytes.substr(0, space)))};
  }
};

// feature: C-08
TEST_CASE("objects of every rank reach whom they should, whatever their length") {
  for (const Over transport : {Over::arena, Over::links}) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      const int rank = group.rank();
      const auto texts = group.all_gather_object(text_of(rank));
      REQUIRE(texts.size() == 3);
      for (int r = 0; r < 3; ++r) CHECK((texts[static_cast<std::size_t>(r)] == text_of(r)));
      CHECK((group.all_gather_object(rank * 0.5) == std::vector<double>{0, 0.5, 1}));
      for (int root = 0; root < 3; ++root) {
        const auto scores = group.gather_object(Score{"rank", rank + 1}, root);
        REQUIRE(scores.size() == (rank == root ? 3U : 0U));
        if (rank == root) CHECK((scores[2].points == 3 && scores[2].name == "rank"));
        CHECK((group.broadcast_object(text_of(rank), root) == text_of(root)));
        std::vector<std::string> all;
        for (int r = 0; rank == root && r < 3; ++r) all.push_back(text_of((root + r) % 3));
        CHECK((group.scatter_object(all, root) == text_of((root + rank) % 3)));
      }
    });
  }
}

// feature: C-08
TEST_CASE("tensors of different shapes and types are objects, too") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto made = [](int rank) {
      return rank == 0 ? at::arange(6).reshape({2, 3}).t() : at::full({}, 1.5, at::kHalf);
    };
    const auto all = group.all_gather_object(at::Tensor(made(group.rank())));
    for (int r = 0; r < 2; ++r) {
      CHECK((all[static_cast<std::size_t>(r)].scalar_type() == made(r).scalar_type()));
      CHECK(at::equal(all[static_cast<std::size_t>(r)], made(r)));
    }
    CHECK((group.all_gather_object(at::Tensor(at::empty({0, 5})))[1].sizes() == at::IntArrayRef({0, 5})));
  });
}

// fault: S6
// feature: C-06
TEST_CASE("a wrong list is an error on all ranks, and damaged bytes allocate nothing") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    CHECK_ERROR(error_of([&] { group.scatter_object(std::vector<std::string>{"one"}, 1); }),
                ErrorKind::invalid_argument, "rank 1 must give one object for each of 2 ranks");
    group.barrier();
  });
  CHECK_ERROR(error_of([] { ObjectCodec<int>::decode("abc"); }), ErrorKind::corrupt_data, "has 3 bytes, expected 4");
  const std::string whole = ObjectCodec<at::Tensor>::encode(at::ones({3, 4}));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK(error_of([&] { ObjectCodec<at::Tensor>::decode(whole.substr(0, length)); }).kind() ==
          ErrorKind::corrupt_data);
  }
  std::string huge = whole;
  huge[16 + 5] = 1;  // a dimension of 2^40
  CHECK(error_of([&] { ObjectCodec<at::Tensor>::decode(huge); }).kind() == ErrorKind::corrupt_data);
}

// fault: S6
TEST_CASE("tensors that are objects are what they say, or refused") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const at::Tensor z = at::complex(at::ones({2}), at::full({2}, group.rank() + 1.0));
    CHECK(at::equal(group.all_gather_object(at::Tensor(z.conj()))[1], at::complex(at::ones({2}), at::full({2}, -2.0))));
    CHECK(at::equal(group.all_gather_object(at::Tensor(at::imag(z.conj())))[0], at::full({2}, -1.0)));
    CHECK(at::equal(group.all_gather_object(at::ones({1}).expand({3}))[0], at::ones({3})));
    const auto refused = [](const at::Tensor& tensor, const std::string& why) {
      CHECK_ERROR(error_of([&] { ObjectCodec<at::Tensor>::encode(tensor); }), ErrorKind::invalid_argument, why);
    };
    refused({}, "sending a tensor as an object: the tensor is undefined");
    refused(at::ones({2}).to_sparse(), "the tensor is sparse");
    refused(at::quantize_per_tensor(at::ones({2}), 0.5, 0, at::kQInt8), "the tensor is quantized");
    refused(at::empty({2}, at::TensorOptions().device(at::kMeta)), "the tensor is on the meta device");
    group.barrier();
  });
}

TEST_CASE("a root that is no rank is refused before anything is exchanged") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    for (const int root : {-1, 2}) {
      if (group.rank() == 1) continue;  // nobody else hears of it
      const std::string why = "root " + std::to_string(root) + " is not a rank of this group of 2";
      CHECK_ERROR(error_of([&] { group.gather_object(1, root); }), ErrorKind::invalid_argument, why);
      CHECK_ERROR(error_of([&] { group.broadcast_object(1, root); }), ErrorKind::invalid_argument, why);
      CHECK_ERROR(error_of([&] {
                    group.scatter_object(std::vector<int>{1, 2}, root);
                  }),
                  ErrorKind::invalid_argument, why);
    }
    group.barrier();
  });
}

TEST_CASE("what cannot be turned into bytes is known to ranks that wait for it") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const bool is_root = group.rank() == 0;
    const at::Tensor tensor = is_root ? at::eye(2).to_sparse() : at::Tensor();
    const Error error = error_of([&] {
      if (is_root) CHECK_ERROR(error_of([&] { group.broadcast_object(tensor); }), ErrorKind::invalid_argument);
      is_root ? group.barrier() : void(group.broadcast_object(tensor));
    });
    CHECK_ERROR(error, ErrorKind::desync);
    if (!is_root) CHECK_ERROR(error, ErrorKind::desync, "encoding of an object", "sparse");
  });
}

TEST_CASE("lengths that no object has name the rank that told them, on all ranks") {
  using Exchange = std::function<void(const ProcessGroup&)>;
  const std::vector<std::pair<std::string, Exchange>> exchanges = {
      {"gather", [](const ProcessGroup& group) { all_gather_bytes(group, "mine"); }},
      {"broadcast", [](const ProcessGroup& group) { broadcast_bytes(group, "", 1); }},
      {"scatter", [](const ProcessGroup& group) { scatter_bytes_from(group, {}, 1); }}};
  for (const auto& [name, exchange] : exchanges) {
    for (const std::int64_t length : {std::int64_t{-5}, std::int64_t{kMostObjectBytes} + 1, std::int64_t{1} << 60}) {
      CAPTURE(name);
      run_group_or_throw(2, Over::arena, [&, &name = name, &exchange = exchange](const ProcessGroup& group) {
        const std::string why = "rank 1's object: the length (do all ranks make the same calls?) is " +
                                std::to_string(length) + "; expected 0 to 1073741824";
        const at::Tensor told = at::full({1}, length, at::kLong);
        if (group.rank() == 1) {  // what a rank sends that does not keep to the rules
          const auto tell = [&, &name = name] {
            if (name == "gather")
              group.all_gather_into(at::empty({2}, at::kLong), told, {.name = "lengths of objects"});
            if (name == "broadcast") group.broadcast(told, 1, {.name = "length of an object"});
            if (name == "scatter") group.broadcast(at::cat({told, told}), 1, {.name = "lengths of objects"});
            group.barrier();
          };
          CHECK_ERROR(error_of(tell), ErrorKind::aborted, why);  // rank 0 may end the group at once
        } else {
          const Error error = error_of([&, &exchange = exchange] { exchange(group); });
          CHECK_ERROR(error, ErrorKind::corrupt_data, why);
          CHECK(error.detail().peer == 1);
        }
      });
    }
  }
}

TEST_CASE("an object over the limit is refused on all ranks, and the group goes on") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const std::string long_one(101, 'x');
    CHECK_ERROR(error_of([&] { gather_bytes_to(group, group.rank() == 1 ? long_one : "", 0, 100); }),
                ErrorKind::invalid_argument, "the object of rank 1 is longer than 100 bytes");
    CHECK(gather_bytes_to(group, long_one.substr(1), 0, 100).size() == (group.rank() == 0 ? 2 : 0));
  });
}
