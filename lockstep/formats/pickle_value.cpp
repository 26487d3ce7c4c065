#include "lockstep/formats/pickle_value.h"

#include <bit>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_classes.h"
#include "lockstep/formats/pickle_tree.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/formats/safetensors/torch_types.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::string_view kKindNames[] = {"None",      "a bool", "an int",    "an int of more than 64 bits",
                                           "a float",   "a str",  "bytes",     "a list",
                                           "a tuple",   "a dict", "a set",     "a tensor",
                                           "a storage", "a name", "an object", "a value of an unknown type"};

bool is_sequence(PickleKind kind) {
  return kind == PickleKind::list || kind == PickleKind::tuple || kind == PickleKind::set;
}

// Of a number in two's complement, the lowest byte first.
std::string decimal(std::string_view bytes) {
  constexpr std::uint32_t kBase = 1'000'000'000;  // nine digits at a time
  const bool is_negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
  std::vector<std::uint8_t> left(bytes.begin(), bytes.end());
  unsigned carry = 1;
  for (std::uint8_t& each : left) {
    if (!is_negative) break;
    carry += static_cast<std::uint8_t>(~each);
    each = static_cast<std::uint8_t>(carry);
    carry >>= 8;
  }
  std::string digits;
  while (!left.empty()) {
    std::uint64_t remainder = 0;
    for (std::size_t i = left.size(); i-- > 0;) {
      remainder = remainder << 8 | left[i];
      left[i] = static_cast<std::uint8_t>(remainder / kBase);
      remainder %= kBase;
    }
    while (!left.empty() && left.back() == 0) left.pop_back();
    digits = (left.empty() ? fmt::format("{}", remainder) : fmt::format("{:09}", remainder)) + digits;
  }
  if (digits.empty()) digits = "0";
  return is_negative ? "-" + digits : digits;
}

}  // namespace

std::string_view to_string(PickleKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

const PickleNode& PickleValue::node() const { return tree_->node(index_); }

const PickleNode& PickleValue::node(PickleKind expected) const {
  const PickleNode& found = node();
  if (found.kind != expected) refuse_kind(to_string(expected));
  return found;
}

void PickleValue::refuse(std::string_view why) const {
  throw Error(ErrorKind::corrupt_data, fmt::format("{}: {}", tree_->origin(), why));
}

void PickleValue::refuse_kind(std::string_view expected) const {
  if (!is(PickleKind::opaque)) {
    refuse(fmt::format("the pickle has {} where {} is expected", to_string(kind()), expected));
  }
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: the pickle has a value of {}, which Lockstep does not read, where {} is expected",
                          tree_->origin(), shown(class_name()), expected));
}

PickleValue PickleValue::child(std::size_t index) const {
  const PickleNode& parent = node();
  if (index >= parent.children.size()) {
    refuse(fmt::format("{} has {} items; item {} is expected", to_string(parent.kind), parent.children.size(), index));
  }
  return {*tree_, parent.children[index]};
}

PickleKind PickleValue::kind() const { return node().kind; }
bool PickleValue::boolean() const { return node(PickleKind::boolean).is_true; }
std::int64_t PickleValue::integer() const { return node(PickleKind::integer).integer; }
double PickleValue::number() const { return std::bit_cast<double>(node(PickleKind::number).integer); }

std::string_view PickleValue::text() const {
  return node(is(PickleKind::bytes) ? PickleKind::bytes : PickleKind::text).text;
}

std::string PickleValue::digits() const {
  return is(PickleKind::large_integer) ? decimal(node().text) : std::to_string(integer());
}

std::size_t PickleValue::size() const {
  if (is_sequence(kind())) return node().children.size();
  return node(PickleKind::dict).children.size() / 2;
}

PickleValue PickleValue::item(std::size_t index) const {
  if (!is_sequence(kind())) refuse_kind("a list");
  return child(index);
}

PickleValue PickleValue::key(std::size_t index) const {
  node(PickleKind::dict);
  return child(2 * index);
}

PickleValue PickleValue::value(std::size_t index) const {
  node(PickleKind::dict);
  return child(2 * index + 1);
}

std::optional<PickleValue> PickleValue::find(std::string_view key) const {
  const PickleNode& dict = node(PickleKind::dict);
  for (std::size_t i = 0; i + 1 < dict.children.size(); i += 2) {
    const PickleNode& name = tree_->node(dict.children[i]);
    if (name.kind == PickleKind::text && name.text == key) return PickleValue(*tree_, dict.children[i + 1]);
  }
  return std::nullopt;
}

PickleValue PickleValue::at(std::string_view key) const {
  const std::optional<PickleValue> found = find(key);
  if (!found) refuse(fmt::format("a dict lacks '{}'", key));
  return *found;
}

std::string_view PickleValue::class_name() const {
  if (is(PickleKind::name) || is(PickleKind::opaque)) return node().text;
  return node(PickleKind::object).text;
}

PickleValue PickleValue::arguments() const {
  if (!is(PickleKind::opaque)) node(PickleKind::object);
  return child(0);
}

std::optional<PickleValue> PickleValue::state() const {
  const PickleNode& object = is(PickleKind::opaque) ? node() : node(PickleKind::object);
  if (object.state == kNoNode) return std::nullopt;
  return PickleValue(*tree_, object.state);
}

std::optional<PickleValue> PickleValue::items() const {
  if (node(PickleKind::opaque).children.size() < 2) return std::nullopt;
  return child(1);
}

std::vector<std::int64_t> PickleValue::sizes() const {
  std::vector<std::int64_t> sizes;
  if (size() > PickleLimits::kDimensions) {
    refuse(fmt::format("a shape has {} dimensions; the limit is {}", size(), PickleLimits::kDimensions));
  }
  for (std::size_t i = 0; i < size(); ++i) {
    sizes.push_back(item(i).integer());
    if (sizes.back() < 0) refuse(fmt::format("a dimension or stride is {}; it must not be negative", sizes.back()));
  }
  return sizes;
}

PickleStorage PickleValue::storage() const {
  const PickleNode& found = node(PickleKind::storage);
  const std::string_view dtype = tree_->node(found.children.at(0)).meaning->detail;
  const bool is_part = found.children.size() == 4;
  return {.dtype = std::string(dtype),
          .key = std::string(found.text),
          .device = std::string(tree_->node(found.children.at(1)).text),
          .bytes = static_cast<std::uint64_t>(found.integer) * torch_element_size(dtype),
          .begin = is_part ? tree_->node(found.children.at(2)).integer : 0,
          .elements = is_part ? tree_->node(found.children.at(3)).integer : found.integer};
}

PickleTensor PickleValue::tensor() const {
  if (is(PickleKind::storage)) {
    PickleStorage all = storage();
    return {.storage = all, .dtype = all.dtype, .offset = all.begin, .shape = {all.elements}, .strides = {1}};
  }
  const PickleNode& found = node(PickleKind::tensor);
  PickleTensor tensor{.storage = child(0).storage(),
                      .dtype = {},
                      .offset = found.integer,
                      .shape = child(1).sizes(),
                      .strides = child(2).sizes(),
                      .requires_grad = found.is_true,
                      .is_parameter = found.is_parameter,
                      .is_conjugated = found.is_conjugated,
                      .is_negated = found.is_negated};
  tensor.offset += tensor.storage.begin;
  const bool has_own_type = found.children.size() > 3;
  tensor.dtype = has_own_type ? std::string(tree_->node(found.children[3]).meaning->detail) : tensor.storage.dtype;
  return tensor;
}

}  // namespace lockstep
