#include "lockstep/comm/group/object_codecs.h"

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/fake_device.h"
#include "tests/support/local_groups.h"

namespace object_codecs_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using nlohmann::json;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

template <class T>
T there_and_back(const T& value) {
  return ObjectCodec<T>::decode(ObjectCodec<T>::encode(value));
}

// Every prefix of the bytes is another value, or refused; nothing else.
template <class T>
void cut_everywhere(const T& value) {
  const std::string bytes = ObjectCodec<T>::encode(value);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    try {
      ObjectCodec<T>::decode(std::string_view(bytes).substr(0, length));
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::corrupt_data);
    }
  }
}

// A value of generated shape; deeper ones are scalars.
c10::IValue draw(std::mt19937& random, int depth) {
  const auto kind = random() % (depth > 3 ? 6 : 11);
  const auto count = random() % 4;
  switch (kind) {
    case 0: return {};
    case 1: return random() % 2 == 0;
    case 2: return static_cast<std::int64_t>(random()) - (1 << 30);
    case 3: return static_cast<double>(random()) / 7;
    case 4: return std::string(count, static_cast<char>(random()));
    case 5: return at::arange(static_cast<std::int64_t>(count)).to(random() % 2 == 0 ? at::kHalf : at::kInt);
    case 6: {
      c10::impl::GenericList list(c10::AnyType::get());
      for (std::size_t i = 0; i < count; ++i) list.push_back(draw(random, depth + 1));
      return list;
    }
    case 7: {
      std::vector<c10::IValue> elements;
      for (std::size_t i = 0; i < count; ++i) elements.push_back(draw(random, depth + 1));
      return c10::ivalue::Tuple::create(elements);
    }
    case 8: {
      c10::impl::GenericDict map(c10::StringType::get(), c10::AnyType::get());
      for (std::size_t i = 0; i < count; ++i) map.insert(std::to_string(random()), draw(random, depth + 1));
      return map;
    }
    case 9: {  // of one type; a tuple's or a tensor's would tell what its values are now
      const c10::IValue first = draw(random, depth + 1);
      const bool is_exact = first.isTuple() || first.isTensor();
      c10::impl::GenericList list(is_exact ? c10::TypePtr(c10::AnyType::get()) : first.type());
      for (std::size_t i = 0; i <= count; ++i) list.push_back(first);
      return list;
    }
    default: return std::vector<std::int64_t>(count, static_cast<std::int64_t>(random()));
  }
}

void check_equal(const c10::IValue& a, const c10::IValue& b) {
  REQUIRE(a.tagKind() == b.tagKind());
  if (a.isTensor()) {
    CHECK((a.toTensor().scalar_type() == b.toTensor().scalar_type()));
    CHECK(at::equal(a.toTensor(), b.toTensor()));
  } else if (a.isTuple() || a.isList()) {
    if (a.isList()) CHECK((*a.toList().elementType() == *b.toList().elementType()));
    const auto as = a.isTuple() ? a.toTupleRef().elements().vec() : a.toListRef().vec();
    const auto bs = b.isTuple() ? b.toTupleRef().elements().vec() : b.toListRef().vec();
    REQUIRE(as.size() == bs.size());
    for (std::size_t i = 0; i < as.size(); ++i) check_equal(as[i], bs[i]);
  } else if (a.isGenericDict()) {
    CHECK((*a.type() == *b.type()));
    REQUIRE(a.toGenericDict().size() == b.toGenericDict().size());
    for (const auto& entry : a.toGenericDict()) check_equal(entry.value(), b.toGenericDict().at(entry.key()));
  } else {
    CHECK((a == b));
  }
}

}  // namespace

// feature: C-08
TEST_CASE("JSON, dictionaries and tensors by name of every rank reach all, whatever their sizes") {
  for (const Over transport : {Over::arena, Over::links}) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      const int rank = group.rank();
      const json mine = {{"rank", rank}, {"list", json(std::vector<int>(static_cast<std::size_t>(rank) * 9, 1))}};
      const auto all = group.all_gather_object(mine);
      CHECK(all[1]["rank"] == 1);
      CHECK(all[1]["list"].size() == 9);
      CHECK(all[0]["list"].empty());
      const std::map<std::string, double> scores{{"loss", rank + 0.5}, {"rank " + std::to_string(rank), 1}};
      CHECK(group.all_gather_object(scores)[1] == std::map<std::string, double>{{"loss", 1.5}, {"rank 1", 1}});
      const Tensors tensors{{"weight", at::full({rank + 1, 2}, rank)}, {"bias", at::zeros({0})}};
      const Tensors from_one = group.broadcast_object(tensors, 1);
      CHECK(at::equal(from_one.at("weight"), at::ones({2, 2})));
      CHECK(from_one.at("bias").numel() == 0);
    });
  }
}

TEST_CASE("containers of containers come back as they were") {
  const std::vector<std::map<int, std::vector<std::string>>> nested{{{1, {"a", ""}}, {2, {}}}, {}};
  CHECK(there_and_back(nested) == nested);
  const std::pair<std::string, std::vector<bool>> pair{"flags", {true, false, true}};
  CHECK(there_and_back(pair) == pair);
  const std::unordered_map<std::string, float> weights{{"a", 1}, {"b", 2}};
  CHECK(there_and_back(weights) == weights);
  c10::Dict<std::string, at::Tensor> dictionary;
  dictionary.insert("z", at::ones({2}));
  dictionary.insert("a", at::zeros({1}));
  const auto back = there_and_back(dictionary);
  CHECK(back.begin()->key() == "z");
  CHECK(at::equal(back.at("a"), at::zeros({1})));
  cut_everywhere(nested);
  cut_everywhere(pair);
}

// feature: C-08
TEST_CASE("torch's values come back with their types") {
  std::mt19937 random(11);
  for (int turn = 0; turn < 200; ++turn) {
    const c10::IValue value = draw(random, 0);
    check_equal(value, there_and_back(value));
    if (turn < 20) cut_everywhere(value);
  }
  CHECK(there_and_back(c10::IValue(std::vector<double>{1, 2})).isDoubleList());
  CHECK(there_and_back(c10::IValue(std::vector<at::Tensor>{at::ones({1})})).isTensorList());
  using c10::TypePtr;
  const TypePtr tensor = c10::TensorType::get();
  const std::vector<TypePtr> element_types{
      c10::TupleType::create({tensor, c10::OptionalType::create(tensor)}),
      c10::DictType::create(c10::StringType::get(), c10::ListType::create(c10::FloatType::get())),
      c10::OptionalType::create(c10::ListType::create(c10::IntType::get())),
  };
  for (const TypePtr& type : element_types) {
    const c10::IValue empty = c10::impl::GenericList(type);
    CHECK((*there_and_back(empty).type() == *empty.type()));
  }
  c10::impl::GenericList states(element_types[0]);
  states.push_back(c10::ivalue::Tuple::create(at::ones({2}), c10::IValue()));
  check_equal(states, there_and_back(c10::IValue(states)));
}

TEST_CASE("what is no value is refused") {
  using Codec = ObjectCodec<c10::IValue>;
  std::mt19937 random(3);
  c10::impl::GenericList nested(c10::ListType::ofInts());
  nested.push_back(std::vector<std::int64_t>{1, 2, 3});
  c10::impl::GenericDict map(c10::StringType::get(), c10::OptionalType::create(c10::IntType::get()));
  map.insert("a", 1);
  map.insert("b", c10::IValue());
  const std::string wholes[]{Codec::encode(nested), Codec::encode(map)};
  for (int turn = 0; turn < 4000; ++turn) {
    std::string bytes = wholes[turn % 2];
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    try {
      Codec::decode(bytes);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::corrupt_data);
    }
  }
  CHECK_ERROR(error_of([] { Codec::decode("?"); }), ErrorKind::corrupt_data, "unknown kind");
  for (const char container : {'l', 'd', 'o'}) {  // of containers without end
    CHECK_ERROR(error_of([&] { Codec::decode("l" + std::string(1'000'000, container)); }), ErrorKind::corrupt_data,
                "its types are nested more than 100 deep");
  }
  for (const char* bytes : {"b\x02", "b\xff"}) {
    CHECK_ERROR(error_of([&] { Codec::decode(bytes); }), ErrorKind::corrupt_data,
                "a bool object from another rank has the value");
  }
  c10::TypePtr deep_type = c10::IntType::get();
  for (int i = 0; i < 200; ++i) deep_type = c10::ListType::create(deep_type);
  const c10::IValue deeply_typed = c10::impl::GenericList(deep_type);
  CHECK_ERROR(error_of([&] { Codec::encode(deeply_typed); }), ErrorKind::invalid_argument,
              "its types are nested more than 100 deep");
  c10::IValue deep;
  for (int i = 0; i < 200; ++i) deep = c10::ivalue::Tuple::create(std::vector<c10::IValue>{deep});
  CHECK_ERROR(error_of([&] { Codec::encode(deep); }), ErrorKind::invalid_argument, "nested more than 100 deep");
  CHECK_ERROR(error_of([] { Codec::encode(c10::IValue(at::Device(at::kCPU))); }), ErrorKind::invalid_argument,
              "cannot send an IValue of the kind Device");
  CHECK_ERROR(error_of([] { ObjectCodec<json>::decode("{\"a\": "); }), ErrorKind::corrupt_data,
              "a received JSON value is invalid", "parse");
}

// feature: C-08
TEST_CASE("tensors in objects come on the receiver's device") {
  register_fake_device();
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const Tensors mine{{"here", at::full({3}, group.rank()).to(kFakeDevice)}, {"host", at::ones({1})}};
    const auto all = group.all_gather_object(mine);
    CHECK(all[1].at("here").device() == kFakeDevice);
    CHECK(at::equal(all[1].at("here").to(at::kCPU), at::ones({3})));
    CHECK(all[1].at("host").is_cpu());
  });
}

TEST_CASE("named tensors come back from bytes as they were, and damaged bytes are refused") {
  const Tensors tensors{{"a", at::arange(12).reshape({3, 4})},
                        {"step", at::full({}, 7, at::kLong)},
                        {"transposed", at::rand({3, 4}).t()},
                        {"empty", at::zeros({0, 2}, at::kHalf)}};
  const std::string bytes = ObjectCodec<Tensors>::encode(tensors);
  const auto back = ObjectCodec<Tensors>::decode(bytes);
  REQUIRE(back.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CHECK((back.at(name).scalar_type() == tensor.scalar_type()));
    CHECK(at::equal(back.at(name), tensor));
  }
  CHECK(ObjectCodec<Tensors>::decode("").empty());
  for (std::size_t length = 1; length < bytes.size(); ++length) {
    std::size_t decoded = 0;
    try {
      decoded = ObjectCodec<Tensors>::decode(bytes.substr(0, length)).size();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::corrupt_data);
    }
    CHECK(decoded < tensors.size());  // cut between two tensors, there is nothing to see
  }
  CHECK_ERROR(error_of([&] { ObjectCodec<Tensors>::decode(std::string(8, '\xff')); }), ErrorKind::corrupt_data,
              "an object from another rank has 0 bytes");
}

}  // namespace object_codecs_test
