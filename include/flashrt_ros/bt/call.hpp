// From ports to a request and from a response to ports, for any service of verbs.hpp. Needs neither
// rclcpp nor BehaviorTree.CPP: ports are read and written by functions that are handed in.

#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "flashrt_ros/bt/port_text.hpp"
#include "flashrt_ros/srv/command.hpp"

namespace flashrt_ros::bt
{

inline constexpr std::uint32_t TIMEOUT_MS = 5000;
inline constexpr const char * TIMEOUT_WORDS = "of each call; a number, no {entry}";

template<class Request, class = void>
struct HasRequestId : std::false_type {};
template<class Request>
struct HasRequestId<Request, std::void_t<decltype(std::declval<Request>().request_id)>>
  : std::true_type {};

template<class Request, class = void>
struct HasSetSeed : std::false_type {};
template<class Request>
struct HasSetSeed<Request, std::void_t<decltype(std::declval<Request>().set_seed)>>
  : std::true_type {};

template<class Request, class = void>
struct HasSetTask : std::false_type {};
template<class Request>
struct HasSetTask<Request, std::void_t<decltype(std::declval<Request>().set_task)>>
  : std::true_type {};

template<class Response, class = void>
struct HasGeneration : std::false_type {};
template<class Response>
struct HasGeneration<Response, std::void_t<decltype(std::declval<Response>().generation)>>
  : std::true_type {};

/// Shows every input port of a node, those that all services have first.
template<class Verb, class Visit>
void visit_inputs(typename Verb::Service::Request & request, Visit && visit)
{
  std::uint32_t timeout_ms = TIMEOUT_MS;
  visit("timeout_ms", timeout_ms, TIMEOUT_WORDS);
  if constexpr (HasRequestId<typename Verb::Service::Request>::value) {
    visit("request_id", request.request_id, "empty: made here; retries of one call share it");
  }
  Verb::inputs(request, visit);
}

/// Shows every output port of a node with its value, those that all services have first.
template<class Verb, class Visit>
void visit_outputs(const typename Verb::Service::Response & response, Visit && visit)
{
  visit("message", response.message, "what was done, or why not");
  visit("error_code", response.error_code, "0 on success; else as in the .srv files");
  Verb::outputs(response, visit);
}

/// Fills a request from ports.
///
/// read(port, value) puts what a port holds into value (std::string, bool or an unsigned number),
/// or throws. Returns the content of the request as text, which tells one request from another.
/// Throws PortError where a value is given that the request would not heed.
template<class Verb, class Read>
std::string fill(typename Verb::Service::Request & request, Read && read)
{
  std::string content = Verb::service;
  auto take = [&](const char * port, auto && field, const char *) {
      using Field = std::decay_t<decltype(field)>;
      constexpr bool plain = std::is_same_v<Field, std::string> || std::is_arithmetic_v<Field>;
      if constexpr (plain) {
        read(port, field);
      } else {
        std::string text;
        read(port, text);
        parse_list(port, text, field.values);
      }
      content += "\n" + std::string(port) + "=" + text_of(field);
    };
  Verb::inputs(request, take);
  if constexpr (HasRequestId<typename Verb::Service::Request>::value) {
    read("request_id", request.request_id);
  }
  if constexpr (HasSetSeed<typename Verb::Service::Request>::value) {
    if (request.seed != 0 && !request.set_seed) {
      throw PortError(
              "seed: expected set_seed=\"true\" beside a seed, found seed=\"" +
              std::to_string(request.seed) + "\" alone, which the service would not heed");
    }
  }
  if constexpr (HasSetTask<typename Verb::Service::Request>::value) {
    if (!request.task.empty() && !request.set_task) {
      throw PortError(
              "task: expected set_task=\"true\" beside a task, found task=\"" + request.task +
              "\" alone, which the service would not heed");
    }
  }
  return content;
}

/// Writes a response to ports by write(port, value); true on success. Of a failure there is nothing
/// but message and error code: what an earlier success has written stays.
template<class Verb, class Write>
bool conclude(const typename Verb::Service::Response & response, Write && write)
{
  write("message", response.message);
  write("error_code", response.error_code);
  if (response.success) {
    Verb::outputs(response, [&](const char * port, const auto & value, const char *) {
        write(port, value);
      });
  }
  return response.success;
}

/// True for answers after which the work may yet be done, so that a retry must keep its id.
inline bool outcome_unknown(std::uint16_t error_code)
{
  using Codes = srv::Command::Response;
  return error_code == Codes::TIMEOUT || error_code == Codes::BUSY;
}

}  // namespace flashrt_ros::bt
