// A random sequence of events around DistributedDataParallel, and the options that it runs with. Plain values, which
// print as text; whether an event can happen where it stands, the Oracle decides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/train/ddp/options.h"

namespace lockstep::sequences {

inline constexpr int kMostRanks = 4, kModels = 2, kSlots = 6;
inline constexpr unsigned kAll = ~0U;
// What a forward uses of a model: two heads, and a parameter that is added at the end.
inline constexpr unsigned kAllParts = 7, kWhole = 07777;

enum class Kind {
  forward,         // into a slot
  backward,        // of the losses of some slots
  input_gradient,  // autograd::grad of a slot's loss
  drop,            // a slot's outputs go
  zero,            // gradients are zeroed or reset
  step,            // of the optimizer
  clip,
  evaluate,  // choice: 0: without gradients, 1: with, 2: without, in training, 3: under no_sync()
  bare,      // forward and backward of the module itself
  freeze,
  thaw,
  add_parameter,
  add_module,
  replace_module,
  set_aside,  // gradients
  put_back,
  reload,   // into another wrapper and optimizer
  join,     // runs its body for batches of each rank
  sharded,  // lockstep mode: a step of all shards
};

enum class Way { wrapper, module_none, module_zeros, optimizer_none, optimizer_zeros, some_none, some_zeros };
enum class Throws { never, in_forward, at_output, in_middle };
enum class Bad { none, infinite, huge };  // an input; what no float16, or float32, can hold
enum class Only { always, even, odd };    // iterations of joins

struct Event {
  Kind kind = Kind::forward;
  int id = 0;             // what inputs depend on
  unsigned ranks = kAll;  // that do it, if it synchronises nothing; of a step of shards: those that make a backward
  int model = 0;          // of those that have one
  bool through[kModels] = {true, false};  // a forward; the first model's outputs are the second's inputs
  bool local[kModels] = {false, false};   // a forward under no_sync()
  int slot = 0;
  unsigned slots = 1;       // of a backward
  unsigned parts = kWhole;  // that a forward uses, 3 bits for each rank; of zero: parameters
  double weight = 0;        // that a forward is given; 0: none
  unsigned weightless = 0;  // ranks whose forward is given the weight 0
  int loss = 0;
  bool retains = false;
  Way way = Way::wrapper;
  Throws throws = Throws::never;
  Bad bad = Bad::none;
  int rank = 0;  // whose input is bad
  int choice = 0;
  Only only = Only::always;
  std::vector<Event> body = {};  // of a join
  int lengths[kMostRanks] = {1, 1, 1, 1};
  bool divides_by_active = false;
};

using Events = std::vector<Event>;

enum class Hook { none, all_reduce, fp16, power_sgd };

struct Setting {
  int ranks = 2;
  int models = 1;
  bool over_links = false;
  bool buckets_off = false;
  double cap_mb = 0;       // 0: the default
  bool caps_list = false;  // bucket_cap_mb_list
  bool delays = false;     // delay_all_reduce_named_params
  bool samples = false;
  bool find_unused = false;
  bool skip_unused = false;
  bool static_graph = false;
  bool norm = false;
  bool norm_in_eval = false;  // the model is in evaluation mode, its batch norm in training
  bool takes_list = false;    // the first argument is a list of tensors
  Hook hook = Hook::none;
  bool reduces_float = false, reduces_half = false;
  NonFinite non_finite = NonFinite::ignore;
  // What some ranks alone may do: a model's first forward, under no_sync(); a forward under no_sync() that changes
  // their buffers, before an evaluation.
  bool first_alone = false, buffers_alone = false;
  bool join_keeps = false;        // gradients are not always zeroed in the step of a join
  bool join_carries = false;      // outputs of one step of a join are there in the next
  bool local_aside = false;       // what is not averaged yet is set aside too
  bool shares_optimizer = false;  // its state is spread over the ranks
  bool compares = false;          // parameters, after each backward
  int shards = 0;                 // lockstep mode
};

struct Sequence {
  std::uint64_t seed = 0;
  Setting setting;
  Events events;
};

DdpOptions options_of(const Setting& setting);
// By which part of their size values may differ.
double tolerance_of(const Setting& setting);
std::string to_text(const Event& event);
std::string to_text(const Sequence& sequence);

}  // namespace lockstep::sequences
