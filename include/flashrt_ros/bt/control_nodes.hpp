// Control nodes that branch an episode; what they do in which order is in branching.hpp.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "behaviortree_cpp/control_node.h"
#include "behaviortree_cpp/decorator_node.h"
#include "flashrt_ros/bt/inner_call.hpp"

namespace flashrt_ros::bt
{

/// Decorator: snapshot, run the child; if it fails restore, reseed and run it again.
class RetryFromCapsule : public BT::DecoratorNode
{
public:
  RetryFromCapsule(
    const std::string & name, const BT::NodeConfig & config, const BT::RosNodeParams & params,
    const std::shared_ptr<Conversation> & conversation)
  : BT::DecoratorNode(name, config), snapshot_(name, config, params, conversation),
    restore_(name, config, params, conversation), drop_(name, config, params, conversation)
  {
  }

  static BT::PortsList providedPorts() {return control_ports<RetryFromCapsulePorts>();}

  void halt() override
  {
    snapshot_.halt();
    restore_.halt();
    drop_.halt();
    leave();
    retry_.reset();
    BT::DecoratorNode::halt();
  }

private:
  BT::NodeStatus tick() override
  {
    if (status() == BT::NodeStatus::IDLE) {
      ports_ = read_ports<RetryFromCapsulePorts>(*this);
      if (ports_.num_attempts == 0) {
        throw BT::RuntimeError(name(), ": num_attempts: expected at least 1, found 0");
      }
      setStatus(BT::NodeStatus::RUNNING);
    }
    return node_status(
      retry_.tick(
        ports_.num_attempts, [this] {return snapshot();},
        [this](std::uint32_t attempt) {return restore(attempt);}, [this] {return run_child();},
        [this] {return drop();}));
  }

  Status snapshot()
  {
    if (capsule_.empty()) {
      capsule_ = name_ + "-" + std::to_string(++serial_);
      lost_ = false;
    }
    // What it comes back to must not give way to what the child makes.
    const Status done = snapshot_.with("capsule", capsule_).with("pin", true).tick();
    if (done == Status::SUCCESS) {
      capsule_id_ = snapshot_.get<std::string>("capsule_id");
      setOutput("attempt", std::uint32_t{1});
    } else if (done == Status::FAILURE) {
      setOutput("message", snapshot_.get<std::string>("message"));
      if (snapshot_.lost()) {
        leave();
      }
      capsule_.clear();
    }
    return done;
  }

  Status drop()
  {
    if (lost_) {  // the time is up: nobody waits for this either
      leave();
      return Status::SUCCESS;
    }
    const Status done = drop_.with("capsule", capsule_).with("force", true).tick();
    if (done != Status::RUNNING) {
      capsule_.clear();
    }
    return done;
  }

  void leave()
  {
    if (!capsule_.empty()) {
      drop_.with("capsule", capsule_).with("force", true).send();
      capsule_.clear();
    }
  }

  Status restore(std::uint32_t attempt)
  {
    const std::uint64_t seed = ports_.seed != 0 ?
      ports_.seed + attempt - 1 : seed_from(capsule_id_ + " " + std::to_string(attempt));
    restore_.with("capsule", capsule_).with("publish", ports_.publish);
    restore_.with("set_seed", ports_.reseed).with("seed", ports_.reseed ? seed : std::uint64_t{0});
    const Status done = restore_.tick();
    if (done == Status::SUCCESS) {
      setOutput("attempt", attempt);
    } else if (done == Status::FAILURE) {
      lost_ = restore_.lost();
      setOutput("message", restore_.get<std::string>("message"));
    }
    return done;
  }

  Status run_child()
  {
    const Status done = status_of(child_node_->executeTick());
    if (done != Status::RUNNING) {
      resetChild();
    }
    if (done == Status::FAILURE) {
      setOutput("message", "attempt " + std::to_string(retry_.attempt()) + " failed");
    }
    return done;
  }

  RetryFromCapsulePorts ports_;
  InnerCall<Snapshot> snapshot_;
  InnerCall<Restore> restore_;
  InnerCall<DropCapsule> drop_;
  Retry retry_;
  const std::string name_ = unlike_any_other("attempt");
  std::uint64_t serial_ = 0;
  std::string capsule_;  // empty: there is none that nobody has dropped
  std::string capsule_id_;
  bool lost_ = false;
};

/// Control node: one branch a child, each child from its branch until one succeeds.
class TryBranches : public BT::ControlNode
{
public:
  TryBranches(
    const std::string & name, const BT::NodeConfig & config, const BT::RosNodeParams & params,
    const std::shared_ptr<Conversation> & conversation)
  : BT::ControlNode(name, config), snapshot_(name, config, params, conversation),
    fork_(name, config, params, conversation), restore_(name, config, params, conversation),
    drop_(name, config, params, conversation)
  {
  }

  static BT::PortsList providedPorts() {return control_ports<TryBranchesPorts>();}

  void halt() override
  {
    snapshot_.halt();
    fork_.halt();
    restore_.halt();
    drop_.halt();
    leave();
    branches_.reset();
    BT::ControlNode::halt();
  }

private:
  BT::NodeStatus tick() override
  {
    if (status() == BT::NodeStatus::IDLE) {
      ports_ = read_ports<TryBranchesPorts>(*this);
      origin_ = name_ + "-" + std::to_string(++serial_);
      capsules_.clear();
      names_.clear();
      lost_ = false;
      setStatus(BT::NodeStatus::RUNNING);
    }
    const Status done = branches_.tick(
      childrenCount(), [this] {return make();},
      [this](std::size_t i) {return restore(names_.at(i));}, [this] {return lost_;},
      [this](std::size_t i) {return run_child(i);}, [this] {return restore(origin_);},
      [this] {return drop();});
    if (done == Status::SUCCESS) {
      setOutput("winner", static_cast<std::uint32_t>(branches_.index()));
    }
    return node_status(done);
  }

  Status make()
  {
    if (names_.empty()) {
      capsules_ = {origin_};
      // Branches of one fork share their storage, which does not give way; the origin is alone
      // where they are of another capsule.
      const Status done = snapshot_.with("capsule", origin_).with("pin", true).tick();
      if (done == Status::FAILURE && !snapshot_.lost()) {
        capsules_.clear();
      }
      if (done != Status::SUCCESS) {
        return said(snapshot_, done);
      }
      for (std::size_t i = 0; i < childrenCount(); ++i) {
        names_.push_back(origin_ + "." + std::to_string(i));
      }
      capsules_.insert(capsules_.end(), names_.begin(), names_.end());
    }
    fork_.with("source", ports_.source.empty() ? origin_ : ports_.source);
    fork_.with("seeds", text_of(List{ports_.seeds}));
    fork_.with("names", text_of(List{names_}));
    const Status done = fork_.tick();
    if (done == Status::FAILURE && !fork_.lost()) {
      capsules_ = {origin_};
    }
    return said(fork_, done);
  }

  Status restore(const std::string & capsule)
  {
    return said(restore_, restore_.with("capsule", capsule).with("publish", ports_.publish).tick());
  }

  Status run_child(std::size_t i)
  {
    const Status done = status_of(children_nodes_[i]->executeTick());
    if (done != Status::RUNNING) {
      haltChild(i);
    }
    if (done == Status::FAILURE) {
      setOutput("message", "branch " + std::to_string(i + 1) + " failed");
    }
    return done;
  }

  Status drop()
  {
    if (lost_) {  // the time is up: nobody waits for these either
      leave();
    }
    for (; !capsules_.empty(); capsules_.pop_back()) {
      const auto & name = capsules_.back();
      if (drop_.with("capsule", name).with("force", true).tick() == Status::RUNNING) {
        return Status::RUNNING;
      }
    }
    return Status::SUCCESS;
  }

  void leave()
  {
    for (; !capsules_.empty(); capsules_.pop_back()) {
      drop_.with("capsule", capsules_.back()).with("force", true).send();
    }
  }

  template<class Call>
  Status said(const Call & call, Status done)
  {
    if (done == Status::FAILURE) {
      lost_ = call.lost();
      setOutput("message", call.template get<std::string>("message"));
    }
    return done;
  }

  TryBranchesPorts ports_;
  InnerCall<Snapshot> snapshot_;
  InnerCall<Fork> fork_;
  InnerCall<Restore> restore_;
  InnerCall<DropCapsule> drop_;
  Branches branches_;
  const std::string name_ = unlike_any_other("origin");
  std::uint64_t serial_ = 0;
  bool lost_ = false;
  std::string origin_;
  std::vector<std::string> names_, capsules_;
};

}  // namespace flashrt_ros::bt
