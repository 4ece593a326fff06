# Imported targets of the ROS 2 wheels list the include directories of the machine that built the
# wheels (its Python, for one). CMake stops at a listed directory that does not exist, so take such
# directories off. On an ordinary ROS 2 installation every one exists and nothing changes.
# IMPORTED_TARGETS is known from CMake 3.21 on; before that an ordinary installation is assumed.
if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.21)
  get_property(_imported_targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(_target IN LISTS _imported_targets)
    get_target_property(_listed ${_target} INTERFACE_INCLUDE_DIRECTORIES)
    if(_listed)
      set(_present ${_listed})
      foreach(_directory IN LISTS _listed)
        # A generator expression is not a path yet.
        if(NOT _directory MATCHES "^\\$<" AND NOT EXISTS "${_directory}")
          list(REMOVE_ITEM _present "${_directory}")
        endif()
      endforeach()
      set_property(TARGET ${_target} PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${_present}")
    endif()
  endforeach()
endif()
