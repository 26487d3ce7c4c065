// The Python module: create() makes the backend of one group.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <torch/version.h>

#include "backend.h"

PYBIND11_MODULE(_lockstep, module) {
  namespace py = pybind11;
  using lockstep::python::Backend;
  py::module_::import("torch._C._distributed_c10d");  // has the base class

  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(module, "Backend")
      .def_property_readonly("options", &Backend::getBackendOptions)
      .def("_set_default_timeout", &Backend::setTimeout, py::arg("timeout"));
  module.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
         const std::string& name, std::vector<std::uint64_t> global_ranks) {
        return c10::make_intrusive<Backend>(store, rank, size, timeout, name, std::move(global_ranks));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"), py::arg("global_ranks"),
      py::call_guard<py::gil_scoped_release>());
  module.attr("torch_version") = TORCH_VERSION;
}
