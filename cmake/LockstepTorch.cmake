# Finds libtorch: Torch_DIR or CMAKE_PREFIX_PATH, else the active Python's torch, else the project's own .venv.
# Defines lockstep_torch, an interface target that stands for it.
if(NOT Torch_DIR)
  foreach(python IN ITEMS python3 ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    execute_process(COMMAND ${python} -c
                    "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                    OUTPUT_VARIABLE torch_package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND EXISTS "${torch_package}/share/cmake/Torch/TorchConfig.cmake")
      list(APPEND CMAKE_PREFIX_PATH "${torch_package}/share/cmake")
      break()
    endif()
  endforeach()
endif()
include(LockstepCuda)
lockstep_find_torch(QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "libtorch was not found. Run script/bootstrap, or pass -DTorch_DIR=<libtorch>/share/cmake/Torch, "
                      "or build without it: -DLOCKSTEP_TORCH=OFF")
endif()
if(Torch_VERSION VERSION_LESS 2.11 OR Torch_VERSION VERSION_GREATER_EQUAL 2.14)
  message(WARNING "Lockstep is tested with libtorch 2.11 to 2.13; this is ${Torch_VERSION} (${Torch_DIR})")
  set_property(GLOBAL PROPERTY LOCKSTEP_TORCH_IS_UNTESTED ON)
endif()
message(STATUS "libtorch ${Torch_VERSION}: ${Torch_DIR}")

add_library(lockstep_torch INTERFACE)
set_target_properties(lockstep_torch PROPERTIES EXPORT_NAME torch_interface)
# libtorch_cuda.so of PyPI exports a std::filesystem::remove_all() that crashes. The first library with a name provides
# it, so the standard library goes before libtorch.
if(EXISTS ${LOCKSTEP_TORCH_LIB_DIR}/libtorch_cuda.so AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(libraries_before_torch stdc++)
endif()
target_link_libraries(lockstep_torch INTERFACE "$<BUILD_INTERFACE:${libraries_before_torch};${TORCH_LIBRARIES}>")
target_include_directories(lockstep_torch SYSTEM INTERFACE "$<BUILD_INTERFACE:${TORCH_INCLUDE_DIRS}>")
if(LOCKSTEP_SANITIZE STREQUAL "thread")
  target_compile_options(lockstep_torch INTERFACE $<BUILD_INTERFACE:-Wno-tsan>)  # c10's headers use fences, too
endif()

lockstep_precompiled(lockstep_precompiled_torch ${CMAKE_CURRENT_LIST_DIR}/precompiled_torch.h lockstep_torch)
set_target_properties(lockstep_precompiled_torch PROPERTIES LOCKSTEP_USES_TORCH ON)

# lockstep_precompile_torch(<target>) gives a target the precompiled headers of libtorch.
function(lockstep_precompile_torch target)
  set_target_properties(${target} PROPERTIES LOCKSTEP_USES_TORCH ON)
  lockstep_use_precompiled(${target} lockstep_precompiled_torch)
endfunction()
