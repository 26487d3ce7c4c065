// What a rank takes from a set, in two passes, so that nothing changes before everything is verified, and large models
// need no second copy in memory. The ranks of a node verify a share of the bytes each, which reads them from the disk
// once; then each reads what it wants, from the system's file cache, and checks it again.
//   set -> verify_share() -> read_content() -> checks of the caller -> fill()
// Not thread-safe. Blocks for disk I/O. Only reader_of() is collective. Error{corrupt_data}: damage, or the set was
// replaced or removed meanwhile; that of fill() leaves some of the tensors with new values.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/set_reader.h"

namespace lockstep::internal {

// This rank among those of its node that load together.
struct Reader {
  std::size_t number = 0;
  std::size_t count = 1;
};
Reader reader_of(const ProcessGroup& group);

void verify_share(SetReader& set, const Reader& reader);

struct SetContent {
  // Tensors are new memory, or the program's own, which has the values of the set only after fill().
  Checkpoint checkpoint;
  std::map<std::string, at::Tensor> own = {};
};
using Wanted = std::function<bool(std::string_view name)>;
// The program's own memory for a tensor of that name, type and shape, contiguous and on the CPU; otherwise undefined.
using Target = std::function<at::Tensor(const std::string& name, const SetTensor& tensor)>;
SetContent read_content(SetReader& set, const Wanted& wanted, const Target& target);

void fill(SetReader& set, const std::map<std::string, at::Tensor>& own);

}  // namespace lockstep::internal
