#include "lockstep/formats/pickle_opcodes.h"

#include <algorithm>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kNameBytes = 1024;  // of a module or a class
constexpr std::uint8_t kHighestProtocol = 5;
constexpr std::size_t kLongBytes = 255;  // of an integer: what LONG1 can have

// Opcodes that exist, but that no file of PyTorch needs.
struct RefusedCode {
  std::uint8_t code;
  std::string_view name;
};
constexpr RefusedCode kRefusedCodes[] = {
    {'2', "DUP"},     {'F', "FLOAT"}, {'I', "INT"},   {'L', "LONG"},  {'P', "PERSID"},       {'S', "STRING"},
    {'V', "UNICODE"}, {'d', "DICT"},  {'g', "GET"},   {'i', "INST"},  {'l', "LIST"},         {'o', "OBJ"},
    {'p', "PUT"},     {0x82, "EXT1"}, {0x83, "EXT2"}, {0x84, "EXT4"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"}};

[[noreturn]] void refuse_op(ErrorKind kind, std::string_view origin, std::size_t at, const std::string& why) {
  throw Error(kind, fmt::format("{}: byte {} of the pickle: {}", origin, at, why));
}

[[noreturn]] void refuse_code(std::string_view origin, std::size_t at, std::uint8_t code) {
  const auto* known = std::ranges::find(kRefusedCodes, code, &RefusedCode::code);
  if (known == std::end(kRefusedCodes)) {
    refuse_op(ErrorKind::corrupt_data, origin, at, fmt::format("unsupported pickle opcode 0x{:02x}", code));
  }
  refuse_op(ErrorKind::invalid_argument, origin, at,
            fmt::format("unsupported pickle opcode {}: Lockstep executes nothing from a file", known->name));
}

// The argument of one opcode, taken from the start of the rest. A method returns false if the bytes end first.
class ArgumentReader {
 public:
  ArgumentReader(ByteView bytes, PickleOp& op, std::string_view origin) : bytes_(bytes), op_(op), origin_(origin) {}

  bool fixed(std::size_t width) { return read_number(width, op_.number); }
  // An int, signed.
  bool integer(std::size_t width) {
    if (!fixed(width)) return false;
    const std::size_t unused = 64 - 8 * width;
    if (unused < 64) op_.number = static_cast<std::uint64_t>(static_cast<std::int64_t>(op_.number << unused) >> unused);
    return true;
  }
  bool big_endian_double() {
    if (!fixed(8)) return false;
    op_.number = __builtin_bswap64(op_.number);
    return true;
  }
  bool counted_text(std::size_t width) {
    std::uint64_t length = 0;
    return read_number(width, length) && take(length, op_.text);
  }
  bool counted_integer(std::size_t width) {
    std::uint64_t length = 0;
    if (!read_number(width, length)) return false;
    if (length > kLongBytes) {
      refuse_op(ErrorKind::invalid_argument, origin_, op_.at,
                fmt::format("an int has {} bytes; the limit is {}", length, kLongBytes));
    }
    return length > sizeof op_.number ? take(length, op_.text) : integer(length);
  }
  bool line(ByteView& out) {
    const std::size_t end = bytes_.substr(op_.next).find('\n');
    const std::size_t length = end == ByteView::npos ? bytes_.size() - op_.next : end;
    if (length > kNameBytes) {
      refuse_op(ErrorKind::corrupt_data, origin_, op_.at, fmt::format("a name is longer than {} bytes", kNameBytes));
    }
    if (end == ByteView::npos) return false;
    out = bytes_.substr(op_.next, end);
    op_.next += end + 1;
    return true;
  }
  bool protocol() {
    if (!fixed(1)) return false;
    if (op_.number < 2 || op_.number > kHighestProtocol) {
      refuse_op(ErrorKind::invalid_argument, origin_, op_.at,
                fmt::format("protocol {}; only 2 to {} are supported", op_.number, kHighestProtocol));
    }
    return true;
  }

 private:
  bool read_number(std::size_t width, std::uint64_t& number) {
    ByteView digits;
    if (!take(width, digits)) return false;
    number = 0;
    for (std::size_t i = 0; i < width; ++i) number |= std::uint64_t{static_cast<std::uint8_t>(digits[i])} << (8 * i);
    return true;
  }
  bool take(std::uint64_t length, ByteView& out) {
    if (length > bytes_.size() - op_.next) return false;
    out = bytes_.substr(op_.next, length);
    op_.next += length;
    return true;
  }

  ByteView bytes_;
  PickleOp& op_;
  std::string_view origin_;
};

}  // namespace

bool decode_pickle_op(ByteView bytes, std::size_t at, std::string_view origin, PickleOp& op) {
  if (at >= bytes.size()) return false;
  const auto code = static_cast<std::uint8_t>(bytes[at]);
  op = {.code = static_cast<PickleCode>(code), .at = at, .next = at + 1};
  ArgumentReader argument(bytes, op, origin);
  switch (op.code) {
    case PickleCode::mark:
    case PickleCode::stop:
    case PickleCode::pop:
    case PickleCode::pop_mark:
    case PickleCode::none:
    case PickleCode::bin_persid:
    case PickleCode::reduce:
    case PickleCode::empty_list:
    case PickleCode::append:
    case PickleCode::build:
    case PickleCode::appends:
    case PickleCode::set_item:
    case PickleCode::tuple:
    case PickleCode::empty_tuple:
    case PickleCode::set_items:
    case PickleCode::empty_dict:
    case PickleCode::new_obj:
    case PickleCode::tuple1:
    case PickleCode::tuple2:
    case PickleCode::tuple3:
    case PickleCode::new_true:
    case PickleCode::new_false:
    case PickleCode::empty_set:
    case PickleCode::add_items:
    case PickleCode::frozen_set:
    case PickleCode::new_obj_ex:
    case PickleCode::stack_global:
    case PickleCode::memoize: return true;
    case PickleCode::bin_int1:
    case PickleCode::bin_get:
    case PickleCode::bin_put: return argument.fixed(1);
    case PickleCode::bin_int2: return argument.fixed(2);
    case PickleCode::bin_int: return argument.integer(4);
    case PickleCode::long_bin_get:
    case PickleCode::long_bin_put: return argument.fixed(4);
    case PickleCode::frame: return argument.fixed(8);
    case PickleCode::long1: return argument.counted_integer(1);
    case PickleCode::long4: return argument.counted_integer(4);
    case PickleCode::bin_float: return argument.big_endian_double();
    case PickleCode::short_bin_string:
    case PickleCode::short_bin_bytes:
    case PickleCode::short_bin_unicode: return argument.counted_text(1);
    case PickleCode::bin_string:
    case PickleCode::bin_bytes:
    case PickleCode::bin_unicode: return argument.counted_text(4);
    case PickleCode::bin_unicode8:
    case PickleCode::bin_bytes8:
    case PickleCode::bytearray8: return argument.counted_text(8);
    case PickleCode::global: return argument.line(op.text) && argument.line(op.name);
    case PickleCode::proto: return argument.protocol();
  }
  refuse_code(origin, at, code);
}

std::size_t pickle_end(ByteView bytes, std::size_t begin, std::string_view origin) {
  PickleOp op;
  for (std::size_t at = begin; decode_pickle_op(bytes, at, origin, op); at = op.next) {
    if (op.code == PickleCode::stop) return op.next;
  }
  return ByteView::npos;
}

bool is_utf8(ByteView text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<std::uint8_t>(text[i++]);
    if (first < 0x80) continue;
    const std::size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || text.size() - i < more) return false;
    std::uint32_t point = first & (0x3fU >> more);
    for (std::size_t k = 0; k < more; ++k) {
      const auto next = static_cast<std::uint8_t>(text[i++]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3fU);
    }
    const bool is_surrogate = point >= 0xd800 && point < 0xe000;
    const bool is_too_long = (more == 2 && point < 0x800) || (more == 3 && point < 0x10000);
    if (is_surrogate || is_too_long || point > 0x10ffff) return false;
  }
  return true;
}

bool replace_surrogates(ByteView text, std::string& out) {
  out = text;
  for (std::size_t i = 0; i + 2 < out.size(); ++i) {
    const auto second = static_cast<std::uint8_t>(out[i + 1]);
    const auto third = static_cast<std::uint8_t>(out[i + 2]);
    if (out[i] != '\xed' || second < 0xa0 || second > 0xbf || (third & 0xc0) != 0x80) continue;
    std::ranges::copy(std::string_view("\xef\xbf\xbd"), out.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return is_utf8(out);
}

}  // namespace lockstep::internal
