# The nodes for BehaviorTree.CPP, as a plug-in of BehaviorTree.ROS2; only where that is installed.
find_package(behaviortree_ros2 QUIET)
if(NOT behaviortree_ros2_FOUND)
  message(STATUS "No behaviortree_ros2: the plug-in for BehaviorTree.CPP is left out "
    "(docs/behaviortree_cpp.md)")
  return()
endif()

set(_plugin ${PROJECT_NAME}_bt_nodes)
add_library(${_plugin} SHARED src/bt_nodes.cpp)
# Without it the entry point of the plug-in is not exported.
target_compile_definitions(${_plugin} PRIVATE BT_PLUGIN_EXPORT)
target_include_directories(${_plugin} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/include")
rosidl_get_typesupport_target(_messages ${PROJECT_NAME} rosidl_typesupport_cpp)
target_link_libraries(${_plugin} PRIVATE ${_messages})
if(TARGET behaviortree_ros2::behaviortree_ros2)
  target_link_libraries(${_plugin} PRIVATE behaviortree_ros2::behaviortree_ros2)
else()
  # Versions before 0.3 export directories, not targets.
  ament_target_dependencies(${_plugin} behaviortree_ros2)
endif()

install(TARGETS ${_plugin} LIBRARY DESTINATION lib)
# Beside the headers of the messages.
install(DIRECTORY include/ DESTINATION include/${PROJECT_NAME})
