// Request ids that make a retry safe: a call whose outcome is unknown keeps its id for a while.
// Needs neither rclcpp nor BehaviorTree.CPP.

#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

namespace flashrt_ros::bt
{

/// A text unlike that of any other node of any other process, also one that begins at this moment.
inline std::string unlike_any_other(const std::string & word)
{
  std::random_device chance;
  char text[24];
  std::snprintf(text, sizeof(text), "-%08x%08x", unsigned(chance()), unsigned(chance()));
  return word + text;
}

/// What all nodes of one policy share.
struct Conversation
{
  /// Calls begun.
  std::uint64_t calls = 0;
  /// The highest generation that an answer has told of: a status below it is from before.
  std::uint64_t generation = 0;
};

/// Ids for the calls of one tree node.
///
/// A call that was not answered in time may have been carried out. If the same node makes the same
/// call again at once, as under a RetryUntilSuccessful, that is a retry: it carries the same id, and
/// the policy node answers it without doing the work twice. Everything else is a new intention
/// with a new id: after an answer, after a halt, with other content, later, or once anything else
/// was asked in between. (A restore of a minute ago must not count as the one asked for now.)
class RequestIds
{
public:
  using Clock = std::chrono::steady_clock;

  /// window: how long after the failure a call counts as a retry.
  RequestIds(Clock::duration window, std::shared_ptr<Conversation> conversation)
  : window_(window), conversation_(std::move(conversation)), prefix_(unlike_any_other("bt"))
  {
  }

  /// The id for a call that is sent now; content tells one request from another.
  const std::string & begin(const std::string & content, Clock::time_point now)
  {
    const bool retry = failed_ && now - *failed_ <= window_ && content == content_ &&
      conversation_->calls == mine_;
    failed_.reset();
    mine_ = ++conversation_->calls;
    if (!retry) {
      content_ = content;
      id_ = prefix_ + "-" + std::to_string(++serial_);
    }
    return id_;
  }

  /// Whether it was done is not known: no answer in time, or one that says so.
  void unknown(Clock::time_point now) {failed_ = now;}

private:
  Clock::duration window_;
  std::shared_ptr<Conversation> conversation_;
  std::string prefix_, content_, id_;
  std::uint64_t serial_ = 0, mine_ = 0;
  std::optional<Clock::time_point> failed_;
};

}  // namespace flashrt_ros::bt
