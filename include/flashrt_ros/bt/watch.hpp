// What ~/status says about going on. Needs neither rclcpp nor BehaviorTree.CPP.

#pragma once

#include <chrono>
#include <cstdint>
#include <iterator>
#include <string>

#include "flashrt_ros/bt/request_ids.hpp"
#include "flashrt_ros/msg/policy_status.hpp"

namespace flashrt_ros::bt
{

/// The last status of a policy node, and whether it says that the policy runs on fresh inputs.
class Watch
{
public:
  using Clock = std::chrono::steady_clock;

  /// It comes once a second: after this long without, the node is gone.
  static constexpr std::chrono::seconds SILENT{3};

  /// Takes a status that came now. A tick that goes back is a restarted node, whose generations
  /// begin anew.
  void see(const msg::PolicyStatus & status, Clock::time_point now, Conversation & conversation)
  {
    if (seen_ && status.tick < status_.tick) {
      conversation.generation = 0;
    }
    status_ = status;
    came_ = now;
    seen_ = true;
  }

  /// Empty if the policy runs, which takes fresh inputs; else why not.
  std::string why_not_running(Clock::time_point now, const Conversation & conversation) const
  {
    static constexpr const char * MODES[] = {
      "UNCONFIGURED", "INACTIVE", "WAITING", "RUNNING", "HOLDING", "PAUSED", "STOPPED"};
    if (!seen_) {
      return "no ~/status yet";
    }
    if (now - came_ > SILENT) {
      return "no ~/status for more than 3 s: is the policy node running?";
    }
    if (status_.generation < conversation.generation) {
      return "no ~/status since the last verb yet";
    }
    if (status_.mode == msg::PolicyStatus::RUNNING) {
      return "";
    }
    const std::string mode =
      status_.mode < std::size(MODES) ? MODES[status_.mode] : std::to_string(status_.mode);
    return status_.reason.empty() ? mode : mode + ": " + status_.reason;
  }

private:
  msg::PolicyStatus status_;
  Clock::time_point came_;
  bool seen_ = false;
};

struct WaitUntilFreshPorts
{
  std::uint32_t timeout_ms = 5000;

  static constexpr const char * node = "WaitUntilFresh";
  static constexpr const char * kind = "Action";

  template<class Visit>
  void inputs(Visit && visit)
  {
    visit("timeout_ms", timeout_ms, "FAILURE after that time; 0: a condition, answered at once");
  }

  template<class Visit>
  void outputs(Visit && visit) const
  {
    visit("message", std::string(), "why the policy does not run; empty: it does");
  }
};

}  // namespace flashrt_ros::bt
