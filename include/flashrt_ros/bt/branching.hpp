// How the control nodes come back: what they do in which order, and their ports. Needs neither
// rclcpp nor BehaviorTree.CPP; calls and children are functions that are handed in. One that was
// RUNNING is called again in the next tick.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashrt_ros/bt/port_text.hpp"

namespace flashrt_ros::bt
{

enum class Status {RUNNING, SUCCESS, FAILURE};

/// Snapshot, try; on FAILURE restore and try again; drop the capsule in the end.
class Retry
{
public:
  /// One tick.
  ///
  /// num_attempts: of the child, at least 1. snapshot(), child(), drop(): one tick of each.
  /// restore(attempt): back to the capsule before the attempt of that number, 2 the second.
  /// FAILURE of snapshot or restore ends it; the last attempt's too, without a restore. The outcome
  /// of drop does not matter.
  template<class Snapshot, class Restore, class Child, class Drop>
  Status tick(
    std::uint32_t num_attempts, Snapshot && snapshot, Restore && restore, Child && child,
    Drop && drop)
  {
    if (phase_ == Phase::SNAPSHOT) {
      attempt_ = 1;
      const Status done = snapshot();
      if (done != Status::SUCCESS) {
        return done;
      }
      phase_ = Phase::CHILD;
    }
    while (phase_ != Phase::DROP) {
      const bool restoring = phase_ == Phase::RESTORE;
      const Status done = restoring ? restore(attempt_) : child();
      if (done == Status::RUNNING) {
        return done;
      }
      if (restoring && done == Status::SUCCESS) {
        phase_ = Phase::CHILD;
      } else if (!restoring && done == Status::FAILURE && attempt_ < num_attempts) {
        ++attempt_;
        phase_ = Phase::RESTORE;
      } else {
        verdict_ = done;
        phase_ = Phase::DROP;
      }
    }
    if (drop() == Status::RUNNING) {
      return Status::RUNNING;
    }
    phase_ = Phase::SNAPSHOT;
    return verdict_;
  }

  /// The attempt under way, or the last one; 1 the first.
  std::uint32_t attempt() const {return attempt_;}

  /// Begins anew at the next tick.
  void reset() {phase_ = Phase::SNAPSHOT;}

private:
  enum class Phase {SNAPSHOT, RESTORE, CHILD, DROP};

  Phase phase_ = Phase::SNAPSHOT;
  std::uint32_t attempt_ = 1;
  Status verdict_ = Status::FAILURE;
};

/// Snapshot, fork one branch a child, try each child from its branch, keep the first success; if
/// there is none go back to the snapshot. In the end drop the capsules.
class Branches
{
public:
  /// One tick.
  ///
  /// count: of children. make(): the snapshot and its branches. restore(i), child(i): one tick of
  /// each. lost(): whether the restore that failed was not answered. back(): the snapshot again.
  /// drop(): one tick of dropping all, whose outcome does not matter. A branch whose restore is
  /// refused counts as a child that failed. A lost one ends it without going back, since nobody
  /// knows which state is live.
  template<class Make, class Restore, class Lost, class Child, class Back, class Drop>
  Status tick(
    std::size_t count, Make && make, Restore && restore, Lost && lost, Child && child,
    Back && back, Drop && drop)
  {
    if (phase_ == Phase::MAKE) {
      verdict_ = make();
      if (verdict_ == Status::RUNNING) {
        return verdict_;
      }
      index_ = 0;
      phase_ = verdict_ == Status::FAILURE ? Phase::DROP : Phase::RESTORE;
    }
    while (phase_ == Phase::RESTORE || phase_ == Phase::CHILD) {
      const bool restoring = phase_ == Phase::RESTORE;
      verdict_ = restoring ? restore(index_) : child(index_);
      if (verdict_ == Status::RUNNING) {
        return verdict_;
      }
      if (verdict_ == Status::SUCCESS) {
        phase_ = restoring ? Phase::CHILD : Phase::DROP;
      } else if (restoring && lost()) {
        phase_ = Phase::DROP;
      } else {
        ++index_;
        phase_ = index_ < count ? Phase::RESTORE : Phase::BACK;
      }
    }
    if (phase_ == Phase::BACK) {
      if (back() == Status::RUNNING) {
        return Status::RUNNING;
      }
      phase_ = Phase::DROP;
    }
    if (drop() == Status::RUNNING) {
      return Status::RUNNING;
    }
    phase_ = Phase::MAKE;
    return verdict_;
  }

  /// Child that is tried, or that succeeded.
  std::size_t index() const {return index_;}

  /// Begins anew at the next tick.
  void reset() {phase_ = Phase::MAKE;}

private:
  enum class Phase {MAKE, RESTORE, CHILD, BACK, DROP};

  Phase phase_ = Phase::MAKE;
  std::size_t index_ = 0;
  Status verdict_ = Status::FAILURE;
};

/// A noise key that depends on the text alone: FNV-1a, below 2^63.
inline std::uint64_t seed_from(const std::string & text)
{
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char c : text) {
    hash = (hash ^ c) * 0x100000001b3u;
  }
  return hash >> 1;
}

inline constexpr const char * PUBLISH_WORDS =
  "false: a restored state holds until Resume; true: it goes on at once if safe";

struct RetryFromCapsulePorts
{
  std::uint32_t num_attempts = 3;
  bool publish = false, reseed = true;
  std::uint64_t seed = 0;

  static constexpr const char * node = "RetryFromCapsule";
  static constexpr const char * kind = "Decorator";

  template<class Visit>
  void inputs(Visit && visit)
  {
    visit("num_attempts", num_attempts, "how often the child is tried");
    visit("publish", publish, PUBLISH_WORDS);
    visit("reseed", reseed, "true: each retry has a noise key of its own; false: the capsule's");
    visit("seed", seed, "the second attempt has seed + 1 and so on; 0: made from the capsule's id");
  }

  template<class Visit>
  void outputs(Visit && visit) const
  {
    visit("message", std::string(), "why it failed");
    visit("attempt", std::uint32_t(), "the one under way, from 1");
  }
};

struct TryBranchesPorts
{
  std::string source;
  std::vector<std::uint64_t> seeds;
  bool publish = false;

  static constexpr const char * node = "TryBranches";
  static constexpr const char * kind = "Control";

  template<class Visit>
  void inputs(Visit && visit)
  {
    visit("source", source, "capsule to branch from; empty: the live state");
    visit("seeds", List{seeds}, "noise keys, one a child: 1;2;3; empty: derived ones");
    visit("publish", publish, PUBLISH_WORDS);
  }

  template<class Visit>
  void outputs(Visit && visit) const
  {
    visit("message", std::string(), "why it failed");
    visit("winner", std::uint32_t(), "child that succeeded, 0 the first");
  }
};

}  // namespace flashrt_ros::bt
