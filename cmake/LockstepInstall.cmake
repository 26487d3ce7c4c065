# Lockstep::lockstep, the target that stands for all libraries, and the install tree with its CMake package.
# The package has three components: core (everything without libtorch), torch, and formats (files of other programs).

get_property(libraries GLOBAL PROPERTY LOCKSTEP_LIBRARIES)
add_library(lockstep_everything INTERFACE)
add_library(Lockstep::lockstep ALIAS lockstep_everything)
target_link_libraries(lockstep_everything INTERFACE ${libraries})
if(NOT LOCKSTEP_INSTALL)
  return()
endif()

# How a consumer finds what a static library of ours links.
set(finder_Threads::Threads "find_dependency(Threads)")
set(finder_OpenSSL::Crypto "find_dependency(OpenSSL 3.0 COMPONENTS Crypto)")
set(finder_OpenSSL::SSL "find_dependency(OpenSSL 3.0 COMPONENTS SSL)")
set(finder_ZLIB::ZLIB "find_dependency(ZLIB)")
set(finder_MPI::MPI_CXX "set(MPI_CXX_SKIP_MPICXX ON)\nfind_dependency(MPI COMPONENTS CXX)")
set(finder_fmt::fmt "find_dependency(fmt)")
set(finder_nlohmann_json::nlohmann_json "find_dependency(nlohmann_json)")
set(finder_PkgConfig::HWY "find_dependency(PkgConfig)\npkg_check_modules(HWY REQUIRED QUIET IMPORTED_TARGET libhwy)")
set(finder_PkgConfig::XXHASH
    "find_dependency(PkgConfig)\npkg_check_modules(XXHASH REQUIRED QUIET IMPORTED_TARGET libxxhash)")
set(finder_PkgConfig::LIBZIP
    "find_dependency(PkgConfig)\npkg_check_modules(LIBZIP REQUIRED QUIET IMPORTED_TARGET libzip)")

# Sorts the libraries into core_libraries and torch_libraries, and of these, into formats_libraries as well. Writes the
# commands that find what a component links into core_dependencies, torch_dependencies and formats_dependencies.
set(torch_libraries)
set(core_libraries)
set(formats_libraries)
foreach(library IN LISTS libraries)
  get_target_property(links ${library} INTERFACE_LINK_LIBRARIES)
  foreach(depth IN ITEMS 1 2)  # the library's own, in the one that CMake adds
    list(TRANSFORM links REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1")
  endforeach()
  set(component core)
  set(finders)
  foreach(link IN LISTS links)
    if(link STREQUAL "lockstep_torch" OR link IN_LIST torch_libraries)
      set(component torch)
    elseif(DEFINED "finder_${link}")
      list(APPEND finders "${finder_${link}}")
    elseif(NOT link IN_LIST libraries AND NOT link MATCHES "^\\$<BUILD_INTERFACE:|^(rt|dl|m)$")
      message(WARNING "${library} links ${link}; cmake/LockstepInstall.cmake must say how a consumer finds it")
    endif()
  endforeach()
  list(APPEND ${component}_libraries ${library})
  get_target_property(own_component ${library} LOCKSTEP_COMPONENT)
  if(own_component)
    set(component ${own_component})
    list(APPEND ${component}_libraries ${library})
  endif()
  list(APPEND ${component}_dependencies ${finders})
endforeach()
foreach(component IN ITEMS core torch formats)
  list(REMOVE_DUPLICATES ${component}_dependencies)
  list(JOIN ${component}_dependencies "\n" ${component}_dependencies)
endforeach()

foreach(library IN LISTS libraries)
  get_target_property(folder ${library} SOURCE_DIR)  # a folder may have two libraries: with and without torch
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder}
          FILES_MATCHING PATTERN "*.h" PATTERN "base/format.h" EXCLUDE PATTERN "*_internal.h" EXCLUDE)
endforeach()
if(LOCKSTEP_TORCH AND EXISTS ${PROJECT_SOURCE_DIR}/lockstep/lockstep.h)
  install(FILES ${PROJECT_SOURCE_DIR}/lockstep/lockstep.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep)
endif()
if(TARGET lockstep)
  install(TARGETS lockstep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/share/lockstep DESTINATION ${CMAKE_INSTALL_DATADIR})
install(FILES ${PROJECT_SOURCE_DIR}/share/man/man1/lockstep.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_SOURCE_DIR}/share/bash-completion/completions/lockstep
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${PROJECT_SOURCE_DIR}/share/zsh/site-functions/_lockstep
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/lockstep)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
install(TARGETS ${core_libraries} EXPORT LockstepCore ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT LockstepCore NAMESPACE Lockstep:: FILE LockstepCoreTargets.cmake DESTINATION ${package_dir})
if(LOCKSTEP_TORCH)
  install(TARGETS ${torch_libraries} lockstep_torch EXPORT LockstepTorch ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT LockstepTorch NAMESPACE Lockstep:: FILE LockstepTorchTargets.cmake DESTINATION ${package_dir})
endif()

include(CMakePackageConfigHelpers)
get_property(has_nccl GLOBAL PROPERTY LOCKSTEP_HAS_NCCL)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/LockstepConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/LockstepCuda.cmake
        DESTINATION ${package_dir})
