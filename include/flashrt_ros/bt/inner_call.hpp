// A service node inside a control node: not in the XML, with a blackboard of its own for its ports.

#pragma once

#include <memory>
#include <string>

#include "flashrt_ros/bt/branching.hpp"
#include "flashrt_ros/bt/service_node.hpp"

namespace flashrt_ros::bt
{

inline Status status_of(BT::NodeStatus status)
{
  switch (status) {
    case BT::NodeStatus::RUNNING:
      return Status::RUNNING;
    // A child that its precondition skips has nothing against going on.
    case BT::NodeStatus::SUCCESS:
    case BT::NodeStatus::SKIPPED:
      return Status::SUCCESS;
    default:
      return Status::FAILURE;
  }
}

inline BT::NodeStatus node_status(Status status)
{
  switch (status) {
    case Status::RUNNING:
      return BT::NodeStatus::RUNNING;
    case Status::SUCCESS:
      return BT::NodeStatus::SUCCESS;
    default:
      return BT::NodeStatus::FAILURE;
  }
}

template<class Verb>
class InnerCall
{
public:
  /// outer: configuration of the control node, whose port timeout_ms counts here.
  InnerCall(
    const std::string & name, const BT::NodeConfig & outer, const BT::RosNodeParams & params,
    const std::shared_ptr<Conversation> & conversation)
  : ports_(BT::Blackboard::create()),
    node_(name + "/" + Verb::service, config(outer, ports_), params, conversation)
  {
  }

  /// Sets a port for the next call; of a type that the port has.
  template<class T>
  InnerCall & with(const std::string & port, const T & value)
  {
    ports_->set(port, value);
    return *this;
  }

  /// What the last call wrote to a port.
  template<class T>
  T get(const std::string & port) const {return ports_->template get<T>(port);}

  /// Whether the last call, which failed, was not answered: nobody knows whether it was done.
  bool lost() const
  {
    return get<std::uint16_t>("error_code") == srv::Command::Response::TIMEOUT;
  }

  Status tick()
  {
    const Status status = status_of(node_.executeTick());
    if (status != Status::RUNNING) {
      node_.reset();
    }
    return status;
  }

  /// Sends the request and does not look back.
  void send()
  {
    tick();
    halt();
  }

  void halt()
  {
    node_.haltNode();
    node_.reset();
  }

private:
  struct Node : ServiceNode<Verb>
  {
    using ServiceNode<Verb>::ServiceNode;
    void reset() {this->resetStatus();}
  };

  static BT::NodeConfig config(const BT::NodeConfig & outer, const BT::Blackboard::Ptr & ports)
  {
    BT::NodeConfig config;
    config.blackboard = ports;
    typename Verb::Service::Request request;
    visit_inputs<Verb>(
      request, [&](const char * port, auto && field, const char *) {
        ports->set(port, PortType<std::decay_t<decltype(field)>>{});
        config.input_ports[port] = "{" + std::string(port) + "}";
      });
    visit_outputs<Verb>(
      typename Verb::Service::Response{}, [&](const char * port, const auto &, const char *) {
        config.output_ports[port] = "{" + std::string(port) + "}";
      });
    const auto timeout = outer.input_ports.find("timeout_ms");
    config.input_ports["timeout_ms"] =
      timeout == outer.input_ports.end() ? std::to_string(TIMEOUT_MS) : timeout->second;
    return config;
  }

  BT::Blackboard::Ptr ports_;
  Node node_;
};

/// The ports that a struct declares.
template<class Ports>
BT::PortsList declared_ports()
{
  BT::PortsList ports;
  Ports declared;
  declared.inputs(
    [&](const char * port, auto && value, const char * words) {
      ports.insert(input_port(port, value, words));
    });
  declared.outputs(
    [&](const char * port, const auto & value, const char * words) {
      ports.insert(BT::OutputPort<std::decay_t<decltype(value)>>(port, words));
    });
  return ports;
}

/// Those of a control node: its own, and the time-out of each of its calls.
template<class Ports>
BT::PortsList control_ports()
{
  BT::PortsList ports = declared_ports<Ports>();
  ports.insert(input_port("timeout_ms", TIMEOUT_MS, TIMEOUT_WORDS));
  return ports;
}

/// Reads what a struct declares; throws where one does not fit.
template<class Ports>
Ports read_ports(const BT::TreeNode & node)
{
  Ports ports;
  ports.inputs(
    [&](const char * port, auto && value, const char *) {
      using Field = std::decay_t<decltype(value)>;
      PortType<Field> held{};
      if (const auto found = node.getInput(port, held); !found) {
        throw BT::RuntimeError(node.name(), ": ", port, ": ", found.error());
      }
      if constexpr (std::is_same_v<PortType<Field>, Field>) {
        value = held;
      } else {
        parse_list(port, held, value.values);
      }
    });
  return ports;
}

}  // namespace flashrt_ros::bt
