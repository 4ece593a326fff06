// The plug-in: RegisterRosNode(factory, ".../libflashrt_ros_bt_nodes.so", params) loads it.

#include "behaviortree_ros2/plugins.hpp"
#include "flashrt_ros/bt/nodes.hpp"

BTCPP_EXPORT void BT_RegisterRosNodeFromPlugin(
  BT::BehaviorTreeFactory & factory, const BT::RosNodeParams & params)
{
  flashrt_ros::bt::register_nodes(factory, params);
}
