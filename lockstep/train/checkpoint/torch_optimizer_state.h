// PyTorch's state dict of an optimizer, both ways. optimizer -> TorchValue -> file <-> Python's state_dict() and
// load_state_dict() of the same kind of optimizer, with the same parameters in the same groups and order:
//   write_torch_file("run.pt", {TorchValue::Dict{{"model", torch_state_dict(model_tensors)},
//                                                {"optimizer", torch_state_dict(optimizer)},
//                                                {"epoch", {std::int64_t{3}}}}});
//   load_torch_optimizer("run.pt", optimizer, "optimizer");
// Kinds as in optimizer_state.h. A sharded optimizer needs a plain one: load_optimizer(sharded.state_dict(), plain) or,
// in reverse, add_optimizer(checkpoint, plain) and sharded.load_state_dict(checkpoint).
#pragma once

#include <filesystem>
#include <string_view>

#include "lockstep/formats/torch_file_writer.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// All that state_dict() has in Python, with Python's defaults for options that libtorch lacks. It refers to the
// optimizer's memory: write it before training continues. Error{invalid_argument}: another kind of optimizer.
TorchValue torch_state_dict(const torch::optim::Optimizer& optimizer);

// Like load_state_dict() in Python: all options, including the learning rate, become those of the file, and tensors
// take the parameters' type and device. `key`: of the entry that holds the state dict, with nested keys joined by '.';
// empty: the whole file.
// Blocks for disk I/O. Error{invalid_argument}, with all differences listed and nothing changed: no such entry; the
// state of another kind of optimizer; other groups, parameters or shapes; options that libtorch lacks, such as
// maximize. Otherwise errors are those of TorchFile.
void load_torch_optimizer(const std::filesystem::path& path, torch::optim::Optimizer& optimizer,
                          std::string_view key = {});

}  // namespace lockstep
