# Configures the project in `source` against the package installed in `prefix`, builds it, runs its program, consumer.
# prints: what the program must print. error: instead, a pattern that the configuration must fail with.
# venv: a folder whose torch has to be one with CUDA, or else the test is skipped; it is the libtorch of the project.
file(REMOVE_RECURSE ${work})
if(venv)
  file(GLOB torch_cuda ${venv}/lib/python3*/site-packages/torch/lib/libtorch_cuda.so)
  if(NOT torch_cuda)
    message("skipped: ${venv} has no torch with CUDA; script/bootstrap --cuda installs it")
    return()
  endif()
  get_filename_component(torch_lib ${torch_cuda} DIRECTORY)
  list(APPEND options -DTorch_DIR=${torch_lib}/../share/cmake/Torch)
endif()
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${source} -B ${work} -G ${generator} -D CMAKE_BUILD_TYPE=Release
          -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_CXX_COMPILER_LAUNCHER=${launcher} -D CMAKE_PREFIX_PATH=${prefix}
          ${options}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE failed)
if(error)
  # CMake breaks long messages into lines.
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT failed OR NOT output MATCHES "${error}")
    message(FATAL_ERROR "the configuration was to fail with '${error}':\n${output}")
  endif()
  return()
endif()
if(failed)
  message(FATAL_ERROR "the configuration failed:\n${output}")
endif()

execute_process(COMMAND ${CMAKE_COMMAND} --build ${work} --target consumer -j 2 COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/consumer OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "${prints}")
  message(FATAL_ERROR "the program was to print '${prints}', but printed:\n${output}")
endif()
