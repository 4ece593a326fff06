// A node of BehaviorTree.CPP for each service of verbs.hpp, over BehaviorTree.ROS2.

#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "behaviortree_ros2/bt_service_node.hpp"
#include "flashrt_ros/bt/call.hpp"
#include "flashrt_ros/bt/ports.hpp"
#include "flashrt_ros/bt/request_ids.hpp"
#include "flashrt_ros/bt/verbs.hpp"
#include "rclcpp/logging.hpp"

namespace flashrt_ros::bt
{

/// The time that a node waits for its answer: BehaviorTree.ROS2 fixes it when the node is made.
inline std::chrono::milliseconds timeout_of(const std::string & name, const BT::NodeConfig & config)
{
  const auto found = config.input_ports.find("timeout_ms");
  const std::string text =
    found == config.input_ports.end() ? std::to_string(TIMEOUT_MS) : found->second;
  std::vector<std::uint64_t> values;
  if (!BT::TreeNode::isBlackboardPointer(text)) {
    parse_list("timeout_ms", text, values);
  }
  if (values.size() != 1 || values[0] == 0) {
    throw BT::RuntimeError(
            name, ": timeout_ms: expected a number of milliseconds above 0, found '", text,
            "'; it is fixed when the tree is made, so no {entry} of the blackboard will do");
  }
  return std::chrono::milliseconds(values[0]);
}

/// Name of the policy node: `default_port_value` of the plug-in's parameters, `policy` if empty.
inline std::string policy_of(const BT::RosNodeParams & params)
{
  return params.default_port_value.empty() ? "policy" : params.default_port_value;
}

/// What BehaviorTree.ROS2 makes a service node of: there `default_port_value` is the service.
template<class Verb>
BT::RosNodeParams service_params(
  const std::string & name, const BT::NodeConfig & config, BT::RosNodeParams params)
{
  params.default_port_value = policy_of(params) + "/" + Verb::service;
  params.server_timeout = timeout_of(name, config);
  return params;
}

/// Calls one service: SUCCESS if it answers success, else FAILURE with the reason in `message`.
template<class Verb>
class ServiceNode : public BT::RosServiceNode<typename Verb::Service>
{
  using Base = BT::RosServiceNode<typename Verb::Service>;
  using Request = typename Verb::Service::Request;
  using Response = typename Verb::Service::Response;
  using Codes = srv::Command::Response;

public:
  ServiceNode(
    const std::string & name, const BT::NodeConfig & config, const BT::RosNodeParams & params,
    const std::shared_ptr<Conversation> & conversation)
  : Base(name, config, service_params<Verb>(name, config, params)),
    timeout_(timeout_of(name, config)), conversation_(conversation), ids_(timeout_, conversation)
  {
  }

  static BT::PortsList providedPorts()
  {
    return Base::providedBasicPorts(service_ports<Verb>());
  }

  bool setRequest(typename Request::SharedPtr & request) override
  {
    try {
      const std::string content = fill<Verb>(
        *request, [this](const char * port, auto & value) {
          const auto found = this->getInput(port, value);
          if (!found) {
            throw PortError(std::string(port) + ": " + found.error());
          }
        });
      if constexpr (HasRequestId<Request>::value) {
        const std::string & id = ids_.begin(content, RequestIds::Clock::now());
        if (request->request_id.empty()) {
          request->request_id = id;
        }
      }
    } catch (const std::exception & error) {
      invalid_ = error.what();
      return false;
    }
    return true;
  }

  BT::NodeStatus onResponseReceived(const typename Response::SharedPtr & response) override
  {
    if (outcome_unknown(response->error_code)) {
      ids_.unknown(RequestIds::Clock::now());
    }
    if (conclude<Verb>(
        *response, [this](const char * port, const auto & value) {this->setOutput(port, value);}))
    {
      if constexpr (HasGeneration<Response>::value) {
        conversation_->generation = std::max(conversation_->generation, response->generation);
      }
      return BT::NodeStatus::SUCCESS;
    }
    return warn(response->message);
  }

  BT::NodeStatus onFailure(BT::ServiceNodeErrorCode error) override
  {
    const std::string of = std::string(" of ") + Verb::service + " within " +
      std::to_string(timeout_.count()) + " ms: is the policy node running?";
    switch (error) {
      case BT::INVALID_REQUEST:
        return fail(Codes::INVALID_ARGUMENT, invalid_);
      case BT::SERVICE_UNREACHABLE:
        return fail(Codes::TIMEOUT, std::string(Verb::service) + ": no such service; is the policy "
                 "node running, and is its name right?");
      default:
        ids_.unknown(RequestIds::Clock::now());
        return fail(Codes::TIMEOUT, "no answer" + of);
    }
  }

private:
  BT::NodeStatus fail(std::uint16_t code, const std::string & message)
  {
    this->setOutput("message", message);
    this->setOutput("error_code", code);
    return warn(message);
  }

  BT::NodeStatus warn(const std::string & message) const
  {
    RCLCPP_WARN(
      rclcpp::get_logger("flashrt_ros_bt_nodes"), "%s: %s", this->name().c_str(), message.c_str());
    return BT::NodeStatus::FAILURE;
  }

  std::chrono::milliseconds timeout_;
  std::shared_ptr<Conversation> conversation_;
  RequestIds ids_;
  std::string invalid_;
};

}  // namespace flashrt_ros::bt
