// Tensors whose memory is not what they say, or that lie over each other.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>
#include <sys/mman.h>

#include "lockstep/comm/group/derived.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace tensors_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

at::Tensor waves(int rank) { return at::complex(at::arange(4, at::kDouble) + rank, at::ones({4}, at::kDouble)); }

}  // namespace

TEST_CASE("lazily conjugated and negated tensors move what they say") {
  as_group(2, [](const ProcessGroup& group) {
    const at::Tensor memory = waves(group.rank());
    group.all_reduce(memory.conj());
    CHECK(at::equal(memory, waves(0) + waves(1)));
    CHECK(at::equal(group.all_gather(waves(group.rank()).conj())[1], waves(1).conj().resolve_conj()));
    const at::Tensor imaginary = at::imag(waves(group.rank()).conj());
    REQUIRE(imaginary.is_neg());
    group.all_reduce_async(imaginary).wait();
    CHECK(at::equal(imaginary.resolve_neg(), at::full({4}, -2.0, at::kDouble)));
  });
}

TEST_CASE("a tensor that a list holds twice gets one sum, in any memory") {
  as_group(3, [](const ProcessGroup& group) {
    for (const bool shared : {false, true}) {
      for (const std::int64_t count : {4, 100'000}) {
        const at::Tensor w = shared ? group.empty({count}) : at::empty({count});
        w.fill_(group.rank() + 1);
        group.all_reduce({w, w, w.narrow(0, 1, 2)});
        CHECK(at::equal(w, at::full({count}, 6.0)));
        w.fill_(group.rank());
        group.broadcast({w.narrow(0, 0, 3), w.narrow(0, 1, 3)}, 2);
        CHECK(at::equal(w.narrow(0, 0, 4), at::full({4}, 2.0)));
      }
    }
  });
}

TEST_CASE("outputs over each other, and tensors over themselves, are refused before anything is sent") {
  as_group(2, [](const ProcessGroup& group) {
    if (group.rank() == 0) {  // nobody else hears of it
      const at::Tensor v = at::zeros({8});
      CHECK_ERROR(error_of([&] {
                    group.all_gather_into({v.narrow(0, 0, 2), v.narrow(0, 1, 2)}, at::ones({2}));
                  }),
                  ErrorKind::invalid_argument, "all_gather: output tensors 0 and 1 overlap in memory");
      const at::Tensor wide = at::zeros({1}).expand({4});
      const std::string why = "has elements that share memory (sizes [4], strides [0])";
      CHECK_ERROR(error_of([&] { group.all_reduce(wide); }), ErrorKind::invalid_argument,
                  "all_reduce: tensor 0 " + why);
      CHECK_ERROR(error_of([&] { group.recv(wide, 1); }), ErrorKind::invalid_argument, "recv: output tensor 0 " + why);
      CHECK_ERROR(error_of([&] {
                    group.all_reduce(v.as_strided({3, 2}, {1, 1}));
                  }),
                  ErrorKind::invalid_argument, "tensor 0 has elements that share memory");
      CHECK_ERROR(error_of([&] { premultiply({v, v}, 2.0); }), ErrorKind::invalid_argument, "multiplied twice");
      CHECK_ERROR(error_of([&] { group.all_reduce(at::_efficientzerotensor({2}, at::kFloat)); }),
                  ErrorKind::invalid_argument, "tensor 0 is a ZeroTensor without storage");
    }
    group.broadcast(group.rank() == 0 ? at::ones({1}).expand({4}) : at::zeros({4}), 0);  // there it is only read
    CHECK(at::equal(group.all_gather(at::_efficientzerotensor({2}, at::kFloat))[0], at::zeros({2})));
    const at::Tensor matrix = at::zeros({3, 2});
    group.all_gather_into(matrix.unbind(1), at::full({3}, group.rank() + 1.0));  // between each other, not over
    CHECK(at::equal(matrix, at::tensor({1.0F, 2.0F}).expand({3, 2})));
  });
}

TEST_CASE("inputs may lie over outputs") {
  as_group(2, [](const ProcessGroup& group) {
    for (const bool own : {true, false}) {
      const at::Tensor all = group.empty({2, 3});
      const at::Tensor mine = all[own ? group.rank() : 1 - group.rank()];
      mine.fill_(group.rank() + 1);
      group.all_gather_into(all, mine);
      CHECK(at::equal(all, at::tensor({1.0F, 2.0F}).reshape({2, 1}).expand({2, 3})));
      group.reduce_scatter(mine, all);
      CHECK(at::equal(mine, at::full({3}, 2.0 * (group.rank() + 1))));
    }
    const at::Tensor x = at::full({3}, group.rank() + 1.0);
    group.reduce_scatter(x, {x, x});  // its own part of the input, and the other one
    CHECK(at::equal(x, at::full({3}, 3.0)));
    const std::vector<at::Tensor> parts{at::full({2}, group.rank()), at::full({2}, group.rank() + 10)};
    group.all_to_all(parts, parts);
    CHECK(at::equal(parts[1], at::full({2}, 1 + 10 * group.rank())));
  });
}

TEST_CASE("a copy-on-write twin keeps its values, an inference tensor and a leaf are written") {
  as_group(2, [](const ProcessGroup& group) {
    const at::Tensor original = at::full({5}, group.rank() + 1.0), twin = at::_lazy_clone(original);
    group.all_reduce(twin);
    CHECK(at::equal(original, at::full({5}, group.rank() + 1.0)));
    CHECK(at::equal(twin, at::full({5}, 3.0)));
    at::Tensor frozen;
    {
      const c10::InferenceMode mode;
      frozen = at::ones({3, 2}).t();
    }
    group.all_reduce(frozen);
    group.all_reduce_async(frozen).wait();
    CHECK(frozen.sum().item<double>() == 24);
    const at::Tensor leaf = at::ones({3, 2}).t().requires_grad_();
    group.all_reduce(leaf);
    CHECK(leaf.detach().sum().item<double>() == 12);
    CHECK(leaf.is_leaf());
  });
}

TEST_CASE("memory stays while a collective is in flight, whatever becomes of its tensor") {
  as_group(2, [](const ProcessGroup& group) {
    at::Tensor tensor = at::ones({1000});
    const c10::weak_intrusive_ptr<c10::StorageImpl> memory(tensor.storage().getWeakStorageImpl());
    const Work work = group.rank() == 0 ? group.all_reduce_async(tensor) : Work();
    if (group.rank() == 0) {
      tensor.set_data(at::zeros({1}));
      CHECK_FALSE(memory.expired());  // rank 1 has not come
      group.send(at::ones({1}), 1);
      work.wait();
      CHECK(memory.expired());
      return;
    }
    group.recv(at::ones({1}), 0);
    group.all_reduce(tensor);
    CHECK(at::equal(tensor, at::full({1000}, 2.0)));
  });
}

TEST_CASE("what is not a dense tensor is refused by name") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const at::Tensor fine = at::ones({2});
    const auto refused = [&](const at::Tensor& tensor, const std::string& why) {
      CHECK_ERROR(error_of([&] { group.all_gather(tensor); }), ErrorKind::invalid_argument,
                  "all_gather: input tensor 0 " + why);
      CHECK_ERROR(error_of([&] {
                    group.broadcast({fine, tensor});
                  }),
                  ErrorKind::invalid_argument, "broadcast: ", "tensor 1 " + why);
      CHECK_ERROR(error_of([&] { group.send(tensor, 0); }), ErrorKind::invalid_argument, "send: input tensor 0 " + why);
      CHECK_ERROR(error_of([&] { group.all_gather_v(tensor); }), ErrorKind::invalid_argument, why);
    };
    refused({}, "is undefined");
    refused(at::sparse_coo_tensor({2}, at::TensorOptions().dtype(at::kFloat)),
            "is sparse, Sparse, where a dense tensor");
    refused(at::ones({2, 2}).to_sparse_csr(), "is sparse, SparseCsr");
    refused(at::ones({2, 2}).to_mkldnn(), "is Mkldnn, where a dense tensor is needed");
    refused(at::quantize_per_tensor(fine, 0.5, 0, at::kQInt8), "is quantized");
    refused(at::_nested_tensor_from_tensor_list({fine, at::ones({3})}), "is nested");
    refused(at::empty({2}, at::TensorOptions().device(at::kMeta)), "is on the meta device, which has no memory");
  });
}

TEST_CASE("more elements than 32 bits count") {
  constexpr std::size_t kBytes = (std::size_t{1} << 32) + 5;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  {
    const at::Tensor huge = at::from_blob(memory, {static_cast<std::int64_t>(kBytes)}, at::kChar);
    const TensorSegments segments({huge, huge.narrow(0, 0, 7)}, "broadcast", TensorSegments::Use::move,
                                  TensorSegments::Flow::read);
    CHECK(segments.count() == kBytes + 7);
    CHECK(segments.segments()[0].bytes == kBytes);
    CHECK(overlap(huge.narrow(0, std::int64_t{1} << 32, 5), huge.narrow(0, (std::int64_t{1} << 32) + 4, 1)));
  }
  ::munmap(memory, kBytes);
}

TEST_CASE("sizes that no memory has are refused") {
  for (const Over transport : kTransports) {
    run_group_or_throw(1, transport, [](const ProcessGroup& group) {
      const std::int64_t wraps = (std::int64_t{1} << 62) + 1024;
      CHECK_ERROR(error_of([&] { group.empty({wraps}); }), ErrorKind::invalid_argument,
                  "empty: a tensor of sizes [4611686018427388928] exceeds the address space");
      CHECK_ERROR(error_of([&] { group.empty({3, -1}); }), ErrorKind::invalid_argument, "[3, -1] has a negative size");
      CHECK_ERROR(error_of([&] { group.empty({1}, at::ScalarType::Undefined); }), ErrorKind::invalid_argument, "empty");
      CHECK_ERROR(error_of([&] { group.empty({-1, -1}); }), ErrorKind::invalid_argument, "negative");
      CHECK_ERROR(error_of([&] {
                    group.empty({std::int64_t{1} << 31, std::int64_t{1} << 31});
                  }),
                  ErrorKind::invalid_argument, "empty: ");
      CHECK(group.empty({0, 5}).numel() == 0);
      CHECK_FALSE(group.is_shared({}));
    });
  }
  const std::size_t most = ~std::size_t{0};
  for (std::size_t bytes = most; bytes > most - 3; --bytes) CHECK(ArenaHeap::class_bytes(bytes) > most - 5000);
  CHECK(ArenaHeap::class_bytes(most / 8 * 7) >= most / 8 * 7);
}

}  // namespace tensors_test
