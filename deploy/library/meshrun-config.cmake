# find_package(meshrun): the target meshrun::meshrun, with LibTorch.
#
# LibTorch 2.11 is looked for in LIBTORCH_HOME (a CMake variable or one of the environment; a directory with
# include/ and lib/), then in the torch that python3 would import, then where tools/setup put it. LibTorch's own CMake
# package stops on machines without CUDA's toolkit; it is not used.

set(_meshrun_torch_version 2.11)
get_filename_component(_meshrun_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

set(_meshrun_candidates)
if(LIBTORCH_HOME)
  list(APPEND _meshrun_candidates "${LIBTORCH_HOME}")
elseif(DEFINED ENV{LIBTORCH_HOME})
  list(APPEND _meshrun_candidates "$ENV{LIBTORCH_HOME}")
else()
  # Found, not imported: importing takes seconds.
  execute_process(
    COMMAND python3 -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _meshrun_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_meshrun_wheel)
    list(APPEND _meshrun_candidates "${_meshrun_wheel}")
  endif()
  if(DEFINED ENV{XDG_CACHE_HOME})
    list(APPEND _meshrun_candidates "$ENV{XDG_CACHE_HOME}/meshrun/libtorch-2.11.0")
  endif()
  list(APPEND _meshrun_candidates "$ENV{HOME}/.cache/meshrun/libtorch-2.11.0")
endif()

set(_meshrun_refused)
set(meshrun_LIBTORCH)
foreach(_meshrun_directory IN LISTS _meshrun_candidates)
  set(_meshrun_header "${_meshrun_directory}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${_meshrun_header}" OR NOT EXISTS "${_meshrun_directory}/lib/libtorch_cpu.so")
    list(APPEND _meshrun_refused "${_meshrun_directory} has no include/ and lib/ of LibTorch")
    continue()
  endif()
  file(STRINGS "${_meshrun_header}" _meshrun_lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9;]" "" _meshrun_numbers "${_meshrun_lines}")
  string(REPLACE ";" "." _meshrun_found "${_meshrun_numbers}")
  if(NOT _meshrun_found STREQUAL _meshrun_torch_version)
    list(APPEND _meshrun_refused "${_meshrun_directory} is LibTorch ${_meshrun_found}")
    continue()
  endif()
  set(meshrun_LIBTORCH "${_meshrun_directory}")
  break()
endforeach()

if(NOT meshrun_LIBTORCH)
  list(JOIN _meshrun_refused "; " _meshrun_refused)
  set(meshrun_FOUND FALSE)
  set(meshrun_NOT_FOUND_MESSAGE
      "meshrun needs LibTorch ${_meshrun_torch_version}: set LIBTORCH_HOME to a directory with its include/ and lib/, or install the wheel torch==2.11.0 (${_meshrun_refused})")
  return()
endif()

find_package(Threads REQUIRED)

if(NOT TARGET meshrun::meshrun)
  foreach(_meshrun_name c10 torch_cpu)
    add_library(meshrun::${_meshrun_name} SHARED IMPORTED)
    set_target_properties(meshrun::${_meshrun_name} PROPERTIES
      IMPORTED_LOCATION "${meshrun_LIBTORCH}/lib/lib${_meshrun_name}.so"
      INTERFACE_INCLUDE_DIRECTORIES
        "${meshrun_LIBTORCH}/include;${meshrun_LIBTORCH}/include/torch/csrc/api/include")
  endforeach()
  add_library(meshrun::meshrun SHARED IMPORTED)
  set_target_properties(meshrun::meshrun PROPERTIES
    IMPORTED_LOCATION "${_meshrun_prefix}/lib/libmeshrun.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_meshrun_prefix}/include/meshrun"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    # What libtorch_cpu itself needs of CUDA is found when the program starts.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined"
    INTERFACE_LINK_LIBRARIES "meshrun::torch_cpu;meshrun::c10;Threads::Threads")
endif()
set(meshrun_FOUND TRUE)
