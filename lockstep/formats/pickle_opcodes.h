// The opcodes of pickles, one at a time: bytes -> PickleOp. Those that Python writes of protocol 2 on are decoded, but
// for numbers in place of names (EXT) and buffers outside of the pickle. Pure; looks at no byte beyond its input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

enum class PickleCode : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  bin_float = 'G',
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  none = 'N',
  bin_persid = 'Q',
  reduce = 'R',
  bin_string = 'T',
  short_bin_string = 'U',
  bin_unicode = 'X',
  bin_bytes = 'B',
  short_bin_bytes = 'C',
  empty_list = ']',
  append = 'a',
  build = 'b',
  global = 'c',
  appends = 'e',
  bin_get = 'h',
  long_bin_get = 'j',
  bin_put = 'q',
  long_bin_put = 'r',
  set_item = 's',
  tuple = 't',
  empty_tuple = ')',
  set_items = 'u',
  empty_dict = '}',
  proto = 0x80,
  new_obj = 0x81,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  new_true = 0x88,
  new_false = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  short_bin_unicode = 0x8c,
  bin_unicode8 = 0x8d,
  bin_bytes8 = 0x8e,
  empty_set = 0x8f,
  add_items = 0x90,
  frozen_set = 0x91,
  new_obj_ex = 0x92,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  bytearray8 = 0x96,
};

struct PickleOp {
  PickleCode code = PickleCode::stop;
  std::size_t at = 0;        // of the opcode
  std::size_t next = 0;      // after its argument
  std::uint64_t number = 0;  // bit pattern of a float; signed if negative
  ByteView text = {};        // also the module of a name, and an integer of more than 64 bits
  ByteView name = {};
};

// `origin` names the file. Error{invalid_argument}: an opcode that Lockstep does not read. Error{corrupt_data}: there
// is no such opcode, or its argument is impossible. Returns false, and throws nothing, if the bytes end before the
// opcode.
bool decode_pickle_op(ByteView bytes, std::size_t at, std::string_view origin, PickleOp& op);

// Where the pickle that begins at `begin` ends; npos if the bytes end first. Errors as above.
std::size_t pickle_end(ByteView bytes, std::size_t begin, std::string_view origin);

// Text as pickles hold it.
bool is_utf8(ByteView text);
// Python's strings may contain lone UTF-16 surrogates, such as in file names that are not UTF-8; U+FFFD replaces them.
// Returns false if the text is otherwise not UTF-8.
bool replace_surrogates(ByteView text, std::string& out);

}  // namespace lockstep::internal
