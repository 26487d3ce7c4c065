# Finds libtorch, and of one with CUDA what C++ needs of CUDA: the headers of its runtime and libcudart, without nvcc.
# libtorch's own configuration asks for nvcc and the whole toolkit, but for nothing where the target torch::cudart
# exists. pip puts what is needed beside torch (some headers come with cuda-toolkit[cccl,crt]), or a toolkit has it.
# The variables that are looked for here name other places, with -D.

# lockstep_find_torch([<arguments of find_package>]) also sets LOCKSTEP_TORCH_LIB_DIR. Where a project has found
# libtorch before, its torch::cudart is used.
macro(lockstep_find_torch)
  set(lockstep_makes_cudart OFF)
  if(NOT TARGET torch::cudart)
    set(lockstep_makes_cudart ON)
    add_library(torch::cudart INTERFACE IMPORTED GLOBAL)
  endif()
  find_package(Torch ${ARGN})
  if(Torch_FOUND)
    get_filename_component(LOCKSTEP_TORCH_LIB_DIR "${Torch_DIR}/../../../lib" ABSOLUTE)
    if(lockstep_makes_cudart AND EXISTS ${LOCKSTEP_TORCH_LIB_DIR}/libtorch_cuda.so)
      lockstep_fill_cudart()
    endif()
  endif()
endmacro()

# Where pip puts the packages of NVIDIA beside torch: CUDA 13 has one folder, CUDA 12 one for each library.
function(lockstep_beside_torch result)
  set(nvidia ${LOCKSTEP_TORCH_LIB_DIR}/../../nvidia)
  file(GLOB found ${nvidia}/cu[1-9]* ${nvidia}/cuda_* ${nvidia}/nccl)
  set(${result} ${found} PARENT_SCOPE)
endfunction()

function(lockstep_fill_cudart)
  lockstep_beside_torch(beside_torch)
  find_program(nvcc nvcc NO_CACHE)
  get_filename_component(nvcc "${nvcc}" REALPATH)
  get_filename_component(of_nvcc "${nvcc}/../.." ABSOLUTE)
  set(roots ${beside_torch} ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${of_nvcc} /usr/local/cuda)
  find_path(LOCKSTEP_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${roots} PATH_SUFFIXES include NO_CACHE)
  find_path(LOCKSTEP_CUDA_CRT_DIR crt/host_defines.h HINTS ${roots} PATH_SUFFIXES include NO_CACHE)
  find_path(LOCKSTEP_CUDA_CCCL_DIR nv/target HINTS ${roots} PATH_SUFFIXES include/cccl include NO_CACHE)
  file(GLOB bundled LIST_DIRECTORIES OFF RELATIVE ${LOCKSTEP_TORCH_LIB_DIR} ${LOCKSTEP_TORCH_LIB_DIR}/libcudart*.so*)
  find_library(LOCKSTEP_CUDART_LIBRARY NAMES ${bundled} libcudart.so.13 libcudart.so.12 cudart NAMES_PER_DIR
               HINTS ${LOCKSTEP_TORCH_LIB_DIR} ${roots} PATH_SUFFIXES lib lib64 NO_CACHE)
  foreach(found IN ITEMS LOCKSTEP_CUDA_INCLUDE_DIR LOCKSTEP_CUDA_CRT_DIR LOCKSTEP_CUDA_CCCL_DIR
                         LOCKSTEP_CUDART_LIBRARY)
    if(NOT ${found})
      message(FATAL_ERROR "This libtorch has CUDA (${Torch_DIR}), but of CUDA's own headers and libcudart ${found} was "
                          "not found. Install them beside torch, pip install 'cuda-toolkit[cccl,crt,cudart]', or "
                          "install a CUDA toolkit and set CUDA_HOME to it.")
    endif()
  endforeach()
  set_target_properties(torch::cudart PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LOCKSTEP_CUDA_INCLUDE_DIR};${LOCKSTEP_CUDA_CRT_DIR};${LOCKSTEP_CUDA_CCCL_DIR}"
    INTERFACE_LINK_LIBRARIES "${LOCKSTEP_CUDART_LIBRARY}")
endfunction()

# Sets LOCKSTEP_NCCL_INCLUDE_DIR and LOCKSTEP_NCCL_LIBRARY. libtorch has one NCCL, beside it or of the system; a program
# uses the same.
macro(lockstep_find_nccl)
  lockstep_beside_torch(lockstep_nccl_roots)
  find_path(LOCKSTEP_NCCL_INCLUDE_DIR nccl.h HINTS ${lockstep_nccl_roots} PATH_SUFFIXES include NO_CACHE)
  find_library(LOCKSTEP_NCCL_LIBRARY NAMES libnccl.so.2 nccl NAMES_PER_DIR HINTS ${lockstep_nccl_roots}
               PATH_SUFFIXES lib NO_CACHE)
endmacro()
