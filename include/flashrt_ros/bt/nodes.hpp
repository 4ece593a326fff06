// All nodes at once, for programs that link flashrt_ros_bt_nodes or include the headers.

#pragma once

#include <memory>

#include "behaviortree_cpp/bt_factory.h"
#include "behaviortree_ros2/ros_node_params.hpp"
#include "flashrt_ros/bt/control_nodes.hpp"
#include "flashrt_ros/bt/service_node.hpp"
#include "flashrt_ros/bt/watch_node.hpp"

namespace flashrt_ros::bt
{

/// Registers every node under the name that the XML uses.
///
/// params: `nh` the ROS node that calls; `default_port_value` the name of the policy node, `policy`
/// if empty. The time-out is a port of each node.
inline void register_nodes(BT::BehaviorTreeFactory & factory, const BT::RosNodeParams & params)
{
  const auto conversation = std::make_shared<Conversation>();
  for_each_verb(
    [&](auto verb) {
      using Verb = decltype(verb);
      factory.registerNodeType<ServiceNode<Verb>>(Verb::node, params, conversation);
    });
  factory.registerNodeType<RetryFromCapsule>(RetryFromCapsulePorts::node, params, conversation);
  factory.registerNodeType<TryBranches>(TryBranchesPorts::node, params, conversation);
  factory.registerNodeType<WaitUntilFresh>(WaitUntilFreshPorts::node, params, conversation);
}

}  // namespace flashrt_ros::bt
