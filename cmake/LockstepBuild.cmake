# Build settings and the function that makes one library of one folder.
include(GNUInstallDirs)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endif()

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LOCKSTEP_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(LIBDW REQUIRED IMPORTED_TARGET libdw)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(LIBZIP REQUIRED IMPORTED_TARGET libzip)

# Warnings, hardening and sanitizers, for our own sources only.
if(LOCKSTEP_SANITIZE STREQUAL "thread")
  set(LOCKSTEP_WERROR OFF)  # g++ 12 warns of std::string where there is nothing; the other trees have all sources, too
endif()
add_library(lockstep_flags INTERFACE)
target_compile_options(lockstep_flags INTERFACE -Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual
  $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g1  # lines are all that a report needs
    # libtorch does not export the type information that vptr asks for. The checks of each pointer that follow take a
    # quarter of the compiler's time for libtorch's headers; address finds null pointers and wrong sizes, too.
    $<$<BOOL:$<TARGET_PROPERTY:LOCKSTEP_USES_TORCH>>:-fno-sanitize=vptr,null,alignment,object-size>)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  set_property(DIRECTORY PROPERTY LABELS ${LOCKSTEP_SANITIZE})  # so that a failed test says which build it is from
else()
  target_compile_options(lockstep_flags INTERFACE -fstack-protector-strong
    $<$<CONFIG:Release>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>)
  target_compile_definitions(lockstep_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(lockstep_flags INTERFACE -Wl,-z,relro,-z,now)
endif()

# Headers that many sources need are precompiled once a tree, of one set of flags: position-independent code, also for
# programs; the level of optimisation may differ, as long as there is one.
# lockstep_precompiled(<name> <header> [<target to link> ...]) makes them.
function(lockstep_precompiled name header)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp CONTENT "// The target needs a source.\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:lockstep_flags> ${ARGN})
  target_precompile_headers(${name} PRIVATE ${header})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -fpch-preprocess)  # ccache sees which headers were precompiled
  endif()
endfunction()

# lockstep_use_precompiled(<target> <name>)
function(lockstep_use_precompiled target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

lockstep_precompiled(lockstep_precompiled_std ${CMAKE_CURRENT_LIST_DIR}/precompiled_std.h)
# lockstep_once(<target>): what a program does once. It is hardly optimised, under the sanitizers not at all.
function(lockstep_once target)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
    lockstep_use_precompiled(${target} lockstep_precompiled_quick)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    lockstep_use_precompiled(${target} lockstep_precompiled_std)
  endif()
endfunction()
if(LOCKSTEP_SANITIZE)
  lockstep_precompiled(lockstep_precompiled_quick ${CMAKE_CURRENT_LIST_DIR}/precompiled_std.h)
  target_compile_options(lockstep_precompiled_quick PRIVATE -O0)
endif()

# lockstep_library(<folder> SOURCES a.cpp ... [LINKS <folder or target> ...] [PRIVATE_LINKS ...] [TORCH] [OPTIMIZE n]
#                  [QUICK] [COMPONENT <component of the installed package>])
# makes the static library lockstep_<folder>, alias Lockstep::<folder>. LINKS names other folders or targets; a folder
# may only name folders above it in lockstep/CMakeLists.txt, which is what keeps includes pointing one way. A release
# build optimises at level 2, or at the one that OPTIMIZE says: 3 for loops over data, 1 for what a program does once.
# The sanitizers' builds optimise at level 1, or with QUICK, where no test goes through many cases, not at all.
function(lockstep_library folder)
  cmake_parse_arguments(ARG "TORCH;QUICK" "OPTIMIZE;COMPONENT" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  set(target lockstep_${folder})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(Lockstep::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder} LOCKSTEP_COMPONENT "${ARG_COMPONENT}")
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  foreach(link IN LISTS ARG_LINKS)
    if(TARGET lockstep_${link})
      target_link_libraries(${target} PUBLIC lockstep_${link})
    else()
      target_link_libraries(${target} PUBLIC ${link})
    endif()
  endforeach()
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:lockstep_flags> ${ARG_PRIVATE_LINKS})
  if(NOT ARG_OPTIMIZE)
    set(ARG_OPTIMIZE 2)
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O${ARG_OPTIMIZE}>)
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC lockstep_torch)
    lockstep_precompile_torch(${target})
    if(CMAKE_UNITY_BUILD)  # half of what a batch takes, it takes for libtorch
      set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 12)
    endif()
    if(LOCKSTEP_SANITIZE)  # only what tests link
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  elseif(ARG_QUICK)
    lockstep_once(${target})
  else()
    lockstep_use_precompiled(${target} lockstep_precompiled_std)
  endif()
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES ${target})
endfunction()
