// The carrier over MPI: nonblocking collectives, tested until they are done or the deadline has passed.
#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/adapters/backend_table.h"
#include "lockstep/comm/adapters/mpi_process.h"
#include "lockstep/comm/collective/reduce.h"

namespace lockstep::internal {
namespace {

constexpr Duration kPatience = std::chrono::milliseconds(50);  // before a waiting rank asks whether the group lives
// MPI moves only when it is called. A rank that has waited for kYieldFor naps between calls, so that the ranks that it
// waits for get the cores; no longer than kLongestNap, and for a small part of the time that it has waited.
constexpr Duration kYieldFor = std::chrono::microseconds(500);
constexpr Duration kLongestNap = std::chrono::milliseconds(1);
constexpr int kNapPart = 16;
constexpr int kReductions = 8, kTypes = 15;  // of ReduceOp, and of DType without opaque

// MPI has no float16, reckons with bool in its own way and lets implementations differ about NaN; so every reduction is
// Lockstep's own arithmetic, with the order left to MPI.
template <int kOp, int kType>
void reduce_pair(void* in, void* inout, int* count, MPI_Datatype*) {
  std::byte* output = static_cast<std::byte*>(inout);
  const std::array<const std::byte*, 2> rows{static_cast<const std::byte*>(in), output};
  reduce_rows({&output, 1}, rows, static_cast<std::size_t>(*count), static_cast<DType>(kType),
              static_cast<ReduceOp>(kOp));
}

using PairFunction = MPI_User_function*;
template <int... kIndex>
constexpr std::array<PairFunction, sizeof...(kIndex)> pair_functions(std::integer_sequence<int, kIndex...>) {
  return {&reduce_pair<kIndex / kTypes, kIndex % kTypes>...};
}
constexpr auto kPairFunctions = pair_functions(std::make_integer_sequence<int, kReductions * kTypes>{});
static_assert(static_cast<int>(ReduceOp::bxor) + 1 == kReductions && static_cast<int>(DType::opaque) == kTypes);

// Elements as runs of bytes: the size is all that MPI needs to know.
class ElementType {
 public:
  explicit ElementType(std::size_t bytes) {
    check_mpi(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type_), "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~ElementType() { MPI_Type_free(&type_); }
  ElementType(const ElementType&) = delete;
  ElementType& operator=(const ElementType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

class MpiReduction {
 public:
  MpiReduction(ReduceOp op, DType dtype) {
    const auto index = static_cast<std::size_t>(op) * kTypes + static_cast<std::size_t>(dtype);
    check_mpi(MPI_Op_create(kPairFunctions[index], 1, &op_), "MPI_Op_create");
  }
  ~MpiReduction() { MPI_Op_free(&op_); }
  MpiReduction(const MpiReduction&) = delete;
  MpiReduction& operator=(const MpiReduction&) = delete;
  MPI_Op get() const { return op_; }

 private:
  MPI_Op op_ = MPI_OP_NULL;
};

std::vector<int> to_ints(std::span<const std::size_t> counts) { return {counts.begin(), counts.end()}; }

std::vector<int> offsets_of(const std::vector<int>& counts) {
  std::vector<int> offsets;
  int next = 0;
  for (const int count : counts) {
    offsets.push_back(next);
    next += count;
  }
  return offsets;
}

class MpiCarrier final : public Carrier {
 public:
  MpiCarrier(const CarrierSite& site, Deadline deadline)
      : process_(MpiProcess::instance()), size_(site.size), rank_(site.rank), check_alive_(site.check_alive) {
    const std::vector<int> ranks = exchange_ranks(site, deadline);
    const std::lock_guard lock(process_.mutex());
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(world, size_, ranks.data(), &members), "MPI_Group_incl");
    const int tag = static_cast<int>(hash_of(site.group) % 32000);  // every MPI has tags up to 32767
    check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &group_), "MPI_Comm_create_group");
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    MPI_Comm_set_errhandler(group_, MPI_ERRORS_RETURN);
  }

  // A communicator is not freed, since that communicates.
  ~MpiCarrier() override {
    if (!under_way_) return;
    // MPI may still read and write what belongs to an operation that was given up, whenever it is called.
    (void)input_.release();
    (void)output_.release();
    (void)operation_.release();
  }

  std::string_view name() const override { return "mpi"; }

  CarrierBuffers buffers(std::size_t input_bytes, std::size_t output_bytes) override {
    grow(input_, input_capacity_, input_bytes);
    grow(output_, output_capacity_, output_bytes);
    return {input_.get(), output_.get()};
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }

  void run(const CarrierCall& call, Deadline deadline) override {
    const ReduceOp op = call.reduce == ReduceOp::avg ? ReduceOp::sum : call.reduce;
    operation_->sent = to_ints(call.sent);
    operation_->received = to_ints(call.received);
    operation_->sent_offsets = offsets_of(operation_->sent);
    operation_->received_offsets = offsets_of(operation_->received);
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::lock_guard lock(process_.mutex());
      operation_->type.emplace(element_size(call.dtype));
      if (call.dtype != DType::opaque) operation_->reduction.emplace(op, call.dtype);
      check_mpi(start(call, request), "starting a collective");
      under_way_ = true;
    }
    wait(request, deadline);
    {
      const std::lock_guard lock(process_.mutex());
      operation_->reduction.reset();
      operation_->type.reset();
    }
    under_way_ = false;
    if (call.reduce == ReduceOp::avg) {
      const std::byte* sum = call.output;
      reduce_rows({&call.output, 1}, {&sum, 1}, call.count, call.dtype, ReduceOp::avg, size_);
    }
  }

  void interrupt() noexcept override { process_.leave_unfinalized(); }  // who waits asks check_alive()

 private:
  // What MPI uses until the operation is complete.
  struct Operation {
    std::optional<ElementType> type;
    std::optional<MpiReduction> reduction;
    std::vector<int> sent, received, sent_offsets, received_offsets;
  };

  static void grow(std::unique_ptr<std::byte[]>& buffer, std::size_t& capacity, std::size_t bytes) {
    if (buffer != nullptr && capacity >= bytes) return;
    buffer = std::make_unique<std::byte[]>(std::max<std::size_t>(bytes, 64));
    capacity = bytes;
  }

  // The ranks of the group's members in MPI_COMM_WORLD.
  std::vector<int> exchange_ranks(const CarrierSite& site, Deadline deadline) {
    int mine = 0, processes = 0;
    {
      const std::lock_guard lock(process_.mutex());
      check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &mine), "MPI_Comm_rank");
      check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &processes), "MPI_Comm_size");
    }
    if (processes < size_) {
      throw Error(ErrorKind::invalid_argument,
                  "backend mpi: the group has " + std::to_string(size_) + " ranks, but MPI has started " +
                      std::to_string(processes) +
                      " processes; start all of them with the mpirun of the MPI that this program is linked with");
    }
    const std::string prefix = "mpi/" + site.group + "/";
    site.store->set(prefix + std::to_string(rank_), std::to_string(mine), deadline);
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      const Bytes told = site.store->get(prefix + std::to_string(rank), deadline);
      const Origin origin("rank in MPI_COMM_WORLD", rank);
      ranks.push_back(checked_rank(checked_decimal(told, "number", origin), processes, origin));
    }
    return ranks;
  }

  int start(const CarrierCall& call, MPI_Request& request) {
    const Operation& mine = *operation_;
    const MPI_Datatype type = mine.type->get();
    const MPI_Op op = mine.reduction ? mine.reduction->get() : MPI_OP_NULL;
    const int count = static_cast<int>(call.count);  // a buffer holds fewer than 2^31 elements
    const bool is_root = rank_ == call.root;
    switch (call.kind) {
      case OpKind::all_reduce: return MPI_Iallreduce(MPI_IN_PLACE, call.output, count, type, op, group_, &request);
      case OpKind::reduce:
        return MPI_Ireduce(is_root ? MPI_IN_PLACE : call.output, is_root ? call.output : nullptr, count, type, op,
                           call.root, group_, &request);
      case OpKind::reduce_scatter:
        return MPI_Ireduce_scatter_block(call.input, call.output, count, type, op, group_, &request);
      case OpKind::broadcast: return MPI_Ibcast(call.output, count, type, call.root, group_, &request);
      case OpKind::all_gather:
        return MPI_Iallgather(call.input, count, type, call.output, count, type, group_, &request);
      case OpKind::gather:
        return MPI_Igather(call.input, count, type, call.output, count, type, call.root, group_, &request);
      case OpKind::scatter:
        return MPI_Iscatter(call.input, count, type, call.output, count, type, call.root, group_, &request);
      case OpKind::all_to_all:
        return MPI_Ialltoallv(call.input, mine.sent.data(), mine.sent_offsets.data(), type, call.output,
                              mine.received.data(), mine.received_offsets.data(), type, group_, &request);
      default: return MPI_ERR_OTHER;
    }
  }

  void wait(MPI_Request& request, Deadline deadline) {
    const TimePoint start = steady_clock().now();
    TimePoint look = start + kPatience;
    for (;;) {
      int done = 0;
      {
        const std::lock_guard lock(process_.mutex());
        check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "a collective");
      }
      if (done != 0) return;
      const TimePoint now = steady_clock().now();
      if (deadline.expired(now))
        throw Error(
            ErrorKind::timeout,
            "MPI did not finish the collective before the deadline; a rank may be stopped, or the network slow or "
            "broken");
      if (now >= look) {
        check_alive_(deadline);
        look = steady_clock().now() + kPatience;
      }
      if (now - start < kYieldFor) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::min<Duration>(kLongestNap, (now - start) / kNapPart));
      }
    }
  }

  MpiProcess& process_;
  const int size_;
  const int rank_;
  const std::function<void(Deadline)> check_alive_;
  MPI_Comm group_ = MPI_COMM_NULL;
  std::unique_ptr<std::byte[]> input_, output_;
  std::size_t input_capacity_ = 0, output_capacity_ = 0;
  std::unique_ptr<Operation> operation_ = std::make_unique<Operation>();
  bool under_way_ = false;
};

std::unique_ptr<Carrier> make_mpi_carrier(const CarrierSite& site, Deadline deadline) {
  return std::make_unique<MpiCarrier>(site, deadline);
}

}  // namespace

BackendEntry mpi_backend() {
  return {.name = "mpi", .make = make_mpi_carrier, .reductions = lockstep::supports, .bootstrap = mpi_bootstrap};
}

}  // namespace lockstep::internal
