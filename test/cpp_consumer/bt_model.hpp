// Prints the TreeNodesModel of the nodes, which trees/flashrt_ros_nodes.xml must be, byte for byte.

#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>

#include "flashrt_ros/bt/branching.hpp"
#include "flashrt_ros/bt/call.hpp"
#include "flashrt_ros/bt/verbs.hpp"
#include "flashrt_ros/bt/watch.hpp"

namespace flashrt_ros::bt
{

/// Type names as BehaviorTree.CPP itself writes them.
template<class T>
const char * type_name()
{
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, std::uint16_t>) {
    return "unsigned short";
  } else if constexpr (std::is_same_v<T, std::uint32_t>) {
    return "unsigned int";
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    return "unsigned long";
  } else if constexpr (std::is_same_v<T, std::vector<msg::ActionChunk>>) {
    return "std::vector&lt;flashrt_ros::msg::ActionChunk&gt;";
  } else {
    return "std::string";  // lists are text
  }
}

class Model
{
public:
  explicit Model(std::ostream & out)
  : out_(out)
  {
    out_ << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
         << "<!-- The nodes for Groot2 and for flashrt_ros.trees.btcpp. Printed by\n"
         << "     test/cpp_consumer/bt_logic from include/flashrt_ros/bt: change it there. -->\n"
         << "<root BTCPP_format=\"4\">\n  <TreeNodesModel>\n";
  }

  template<class Verb>
  void service_node()
  {
    begin("Action", Verb::node);
    out_ << "      <MetadataFields>\n        <Metadata service=\"" << Verb::service
         << "\"/>\n        <Metadata summary=\"" << Verb::summary
         << "\"/>\n      </MetadataFields>\n";
    input("service_name", std::string("__default__placeholder__"), "Service name");
    typename Verb::Service::Request request;
    visit_inputs<Verb>(
      request, [this](const char * port, auto && value, const char * words) {
        input(port, value, words);
      });
    visit_outputs<Verb>(
      typename Verb::Service::Response{},
      [this](const char * port, const auto & value, const char * words) {
        output(port, value, words);
      });
    end("Action");
  }

  template<class Ports>
  void other_node(bool calls)
  {
    begin(Ports::kind, Ports::node);
    Ports ports;
    ports.inputs([this](const char * p, auto && value, const char * w) {input(p, value, w);});
    if (calls) {
      input("timeout_ms", TIMEOUT_MS, TIMEOUT_WORDS);
    }
    ports.outputs([this](const char * p, const auto & value, const char * w) {output(p, value, w);});
    end(Ports::kind);
  }

  ~Model() {out_ << "  </TreeNodesModel>\n</root>\n";}

private:
  void begin(const char * kind, const char * id)
  {
    out_ << "    <" << kind << " ID=\"" << id << "\">\n";
  }

  void end(const char * kind) {out_ << "    </" << kind << ">\n";}

  template<class T>
  void input(const char * port, const T & value, const char * words)
  {
    out_ << "      <input_port name=\"" << port << "\" type=\"" << type_name<T>()
         << "\" default=\"" << text_of(value) << "\">" << words << "</input_port>\n";
  }

  template<class T>
  void output(const char * port, const T &, const char * words)
  {
    out_ << "      <output_port name=\"" << port << "\" type=\"" << type_name<T>() << "\">"
         << words << "</output_port>\n";
  }

  std::ostream & out_;
};

inline void print_model(std::ostream & out)
{
  Model model(out);
  for_each_verb([&](auto verb) {model.service_node<decltype(verb)>();});
  model.other_node<WaitUntilFreshPorts>(false);
  model.other_node<RetryFromCapsulePorts>(true);
  model.other_node<TryBranchesPorts>(true);
}

}  // namespace flashrt_ros::bt
