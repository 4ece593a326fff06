// Lists in ports: text with semicolons, so that XML, scripts and LoopString read and write them.
// Needs neither rclcpp nor BehaviorTree.CPP.

#pragma once

#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flashrt_ros::bt
{

/// A port holds what its service cannot mean; the message names the port, and what was expected.
struct PortError : std::invalid_argument
{
  using std::invalid_argument::invalid_argument;
};

/// A list field of a request, behind a port of text.
template<class T>
struct List
{
  std::vector<T> & values;
};

template<class T>
List(std::vector<T> &)->List<T>;

inline std::vector<std::string> split(std::string_view text)
{
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = text.find(';');
    std::string_view part = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const auto first = part.find_first_not_of(" \t\n");
    if (first != std::string_view::npos) {
      parts.emplace_back(part.substr(first, part.find_last_not_of(" \t\n") + 1 - first));
    }
  }
  return parts;
}

inline std::string join(const std::vector<std::string> & parts)
{
  std::string text;
  for (const auto & part : parts) {
    text += (text.empty() ? "" : ";") + part;
  }
  return text;
}

/// A value as it stands in XML.
inline std::string text_of(const std::string & value) {return value;}
inline std::string text_of(bool value) {return value ? "true" : "false";}
inline std::string text_of(std::uint32_t value) {return std::to_string(value);}
inline std::string text_of(std::uint64_t value) {return std::to_string(value);}

template<class T>
std::string text_of(const List<T> & list)
{
  std::vector<std::string> parts;
  for (const auto & value : list.values) {
    parts.push_back(text_of(value));
  }
  return join(parts);
}

inline void parse_list(const char *, const std::string & text, std::vector<std::string> & values)
{
  values = split(text);
}

/// Throws PortError where a part is not a number that fits.
inline void parse_list(
  const char * port, const std::string & text, std::vector<std::uint64_t> & values)
{
  values.clear();
  for (const auto & part : split(text)) {
    std::uint64_t value = 0;
    const auto * end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, value);
    if (error != std::errc() || stop != end) {
      throw PortError(
              std::string(port) + ": expected whole numbers from 0 to 2^64-1 with ';' between, "
              "found '" + part + "'");
    }
    values.push_back(value);
  }
}

}  // namespace flashrt_ros::bt
