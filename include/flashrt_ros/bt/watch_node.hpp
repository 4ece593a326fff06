// The node that waits for inputs.

#pragma once

#include <memory>
#include <string>

#include "behaviortree_cpp/action_node.h"
#include "behaviortree_ros2/ros_node_params.hpp"
#include "flashrt_ros/bt/inner_call.hpp"
#include "flashrt_ros/bt/watch.hpp"
#include "rclcpp/rclcpp.hpp"

namespace flashrt_ros::bt
{

/// RUNNING until the policy runs on fresh inputs, as its ~/status says; FAILURE if that takes long.
class WaitUntilFresh : public BT::StatefulActionNode
{
public:
  WaitUntilFresh(
    const std::string & name, const BT::NodeConfig & config, const BT::RosNodeParams & params,
    const std::shared_ptr<Conversation> & conversation)
  : BT::StatefulActionNode(name, config), conversation_(conversation), node_(locked(params.nh))
  {
    // Spun in this node's ticks, and by nobody else.
    group_ = node_->create_callback_group(rclcpp::CallbackGroupType::MutuallyExclusive, false);
    executor_.add_callback_group(group_, node_->get_node_base_interface());
    rclcpp::SubscriptionOptions options;
    options.callback_group = group_;
    subscription_ = node_->create_subscription<msg::PolicyStatus>(
      policy_of(params) + "/status", rclcpp::QoS(1).transient_local(),
      [this](const msg::PolicyStatus & status) {
        watch_.see(status, Watch::Clock::now(), *conversation_);
      },
      options);
  }

  static BT::PortsList providedPorts() {return declared_ports<WaitUntilFreshPorts>();}

  BT::NodeStatus onStart() override
  {
    timeout_ = std::chrono::milliseconds(read_ports<WaitUntilFreshPorts>(*this).timeout_ms);
    began_ = Watch::Clock::now();
    return onRunning();
  }

  BT::NodeStatus onRunning() override
  {
    executor_.spin_some();
    const auto now = Watch::Clock::now();
    const std::string reason = watch_.why_not_running(now, *conversation_);
    setOutput("message", reason);
    if (reason.empty()) {
      return BT::NodeStatus::SUCCESS;
    }
    return now - began_ < timeout_ ? BT::NodeStatus::RUNNING : BT::NodeStatus::FAILURE;
  }

  void onHalted() override {}

private:
  // BehaviorTree.ROS2 hands out the node itself or, in newer versions, a weak pointer.
  static std::shared_ptr<rclcpp::Node> locked(const std::shared_ptr<rclcpp::Node> & node)
  {
    return node;
  }
  static std::shared_ptr<rclcpp::Node> locked(const std::weak_ptr<rclcpp::Node> & node)
  {
    return node.lock();
  }

  std::shared_ptr<Conversation> conversation_;
  std::shared_ptr<rclcpp::Node> node_;
  rclcpp::CallbackGroup::SharedPtr group_;
  rclcpp::executors::SingleThreadedExecutor executor_;
  rclcpp::Subscription<msg::PolicyStatus>::SharedPtr subscription_;
  Watch watch_;
  Watch::Clock::time_point began_;
  std::chrono::milliseconds timeout_{0};
};

}  // namespace flashrt_ros::bt
