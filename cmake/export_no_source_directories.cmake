# The generator lists numpy's include directory in what it exports. With a virtual environment in
# this source tree (.venv, as scripts/setup.sh makes it) that lies in the source tree, and CMake
# refuses to export it. Users of the C++ library never need it, so it serves this build only.
set(_target ${PROJECT_NAME}__rosidl_generator_py)
if(TARGET ${_target})
  get_target_property(_listed ${_target} INTERFACE_INCLUDE_DIRECTORIES)
  if(_listed)
    set(_exported "")
    foreach(_directory IN LISTS _listed)
      string(FIND "${_directory}" "${CMAKE_CURRENT_SOURCE_DIR}/" _position)
      if(_position EQUAL 0)
        list(APPEND _exported "$<BUILD_INTERFACE:${_directory}>")
      else()
        list(APPEND _exported "${_directory}")
      endif()
    endforeach()
    set_property(TARGET ${_target} PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${_exported}")
  endif()
endif()
