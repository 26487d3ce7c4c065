// The opcodes of pickles, one at a time: bytes -> PickleOp. Only those that torch.save and PyTorch's checkpoints write
// are decoded (protocol 2, and what protocols 4 and 5 have beyond it). Pure; looks at no byte beyond its input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

enum class PickleCode : std::uint8_t {
  mark = '(',
  stop = '.',
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
  short_bin_unicode = 0x8c,
  bin_unicode8 = 0x8d,
  bin_bytes8 = 0x8e,
  empty_set = 0x8f,
  add_items = 0x90,
  frozen_set = 0x91,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
};

struct PickleOp {
  PickleCode code = PickleCode::stop;
  std::size_t at = 0;        // of the opcode
  std::size_t next = 0;      // behind its argument
  std::uint64_t number = 0;  // bit pattern of a float; signed if negative
  ByteView text = {};        // also the module of a name
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

}  // namespace lockstep::internal
