// The ports of nodes as BehaviorTree.CPP wants them; needs no rclcpp.

#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "behaviortree_cpp/basic_types.h"
#include "flashrt_ros/bt/call.hpp"
#include "flashrt_ros/bt/verbs.hpp"

namespace flashrt_ros::bt
{

/// The type that a port is read as: lists are text.
template<class Field>
using PortType = std::conditional_t<
  std::is_same_v<Field, std::string> || std::is_arithmetic_v<Field>, Field, std::string>;

/// An input port, with its default as text.
///
/// Numbers, truths and seeds take whatever can be read as such: BehaviorTree.CPP lets ports of two
/// types share no entry, and what a script or a SubTree attribute writes is an int or a double.
template<class Field>
std::pair<std::string, BT::PortInfo> input_port(
  const std::string & port, const Field & value, const char * words)
{
  if constexpr (std::is_same_v<Field, std::string>) {
    return BT::InputPort<std::string>(port, value, words);
  } else {
    return BT::InputPort<BT::AnyTypeAllowed>(port, text_of(value), words);
  }
}

template<class Verb>
BT::PortsList service_ports()
{
  BT::PortsList ports;
  typename Verb::Service::Request request;
  visit_inputs<Verb>(
    request, [&](const char * port, auto && field, const char * words) {
      ports.insert(input_port(port, field, words));
    });
  visit_outputs<Verb>(
    typename Verb::Service::Response{},
    [&](const char * port, const auto & value, const char * words) {
      ports.insert(BT::OutputPort<std::decay_t<decltype(value)>>(port, words));
    });
  return ports;
}

}  // namespace flashrt_ros::bt
