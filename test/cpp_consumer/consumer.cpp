// Uses the package as a C++ package would: headers, CMake targets and the type support at run time.

#include <cstdio>

#include "flashrt_ros/msg/policy_status.hpp"
#include "flashrt_ros/srv/restore.hpp"
#include "rosidl_typesupport_cpp/message_type_support.hpp"
#include "rosidl_typesupport_cpp/service_type_support.hpp"

int main()
{
  using flashrt_ros::msg::PolicyStatus;
  using flashrt_ros::srv::Restore;

  Restore::Request request;
  request.name = "true_cue";
  Restore::Response response;
  response.error_code = Restore::Response::STATE_MISMATCH;
  const auto * service = rosidl_typesupport_cpp::get_service_type_support_handle<Restore>();
  const auto * message = rosidl_typesupport_cpp::get_message_type_support_handle<PolicyStatus>();
  const bool complete = service && message && !request.publish && response.error_code == 8;
  std::printf("%s: %s\n", rosidl_generator_traits::name<Restore>(), complete ? "ok" : "not ok");
  return complete ? 0 : 1;
}
