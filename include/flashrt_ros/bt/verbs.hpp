// One struct a service: which port is which field of its request and response. Everything that a
// tree sees of the services is said here and only here: the nodes read and fill messages by it,
// and trees/flashrt_ros_nodes.xml is printed from it. Needs neither rclcpp nor BehaviorTree.CPP.
//
// `inputs` shows a visitor each port with the field of the request that it fills, whose value in a
// new request is the port's default; `outputs` each port with what the response has for it. The
// port for a capsule is called `capsule`, as BehaviorTree.CPP keeps `name` for itself.

#pragma once

#include <string>
#include <vector>

#include "flashrt_ros/bt/port_text.hpp"
#include "flashrt_ros/srv/command.hpp"
#include "flashrt_ros/srv/drop_capsule.hpp"
#include "flashrt_ros/srv/fork.hpp"
#include "flashrt_ros/srv/get_capsule.hpp"
#include "flashrt_ros/srv/list_capsules.hpp"
#include "flashrt_ros/srv/load_capsule.hpp"
#include "flashrt_ros/srv/move_capsule.hpp"
#include "flashrt_ros/srv/preview.hpp"
#include "flashrt_ros/srv/reset_episode.hpp"
#include "flashrt_ros/srv/restore.hpp"
#include "flashrt_ros/srv/rollback.hpp"
#include "flashrt_ros/srv/save_capsule.hpp"
#include "flashrt_ros/srv/snapshot.hpp"

namespace flashrt_ros::bt
{

inline constexpr const char * EVICTED = "capsules that made room";

template<class Visit>
void capsule_outputs(const msg::CapsuleInfo & capsule, Visit && visit)
{
  visit("capsule_name", capsule.name, "its name");
  visit("capsule_id", capsule.id, "its id");
  visit("step", capsule.step, "its control step of the episode");
}

inline std::string names_of(const std::vector<msg::CapsuleInfo> & capsules)
{
  std::vector<std::string> names;
  for (const auto & capsule : capsules) {
    names.push_back(capsule.name);
  }
  return join(names);
}

struct Snapshot
{
  using Service = srv::Snapshot;
  static constexpr const char * node = "Snapshot";
  static constexpr const char * service = "snapshot";
  static constexpr const char * summary = "Freezes the live execution state and names it.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("capsule", request.name, "name for it; empty: one is made");
    visit("tier", request.tier, "device (or empty), host or disk");
    visit("pin", request.pin, "true: neither evicted nor dropped without force");
    visit("replace", request.replace, "true: a capsule of this name is replaced");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    capsule_outputs(response.capsule, visit);
    visit("size_bytes", response.capsule.size_bytes, "state that it stands for");
    visit("evicted", join(response.evicted), EVICTED);
  }
};

struct Restore
{
  using Service = srv::Restore;
  static constexpr const char * node = "Restore";
  static constexpr const char * service = "restore";
  static constexpr const char * summary =
    "A capsule becomes the live state. The robot itself is not moved back.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("capsule", request.name, "name or id");
    visit("publish", request.publish, "false: hold until Resume; true: go on at once if safe");
    visit("allow_inexact", request.allow_inexact, "true: another exec id is accepted");
    visit("set_seed", request.set_seed, "false: the noise key of the capsule goes on");
    visit("seed", request.seed, "new noise key, with set_seed");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    capsule_outputs(response.capsule, visit);
    visit("generation", response.generation, "of the live state after it");
  }
};

struct Fork
{
  using Service = srv::Fork;
  static constexpr const char * node = "Fork";
  static constexpr const char * service = "fork";
  static constexpr const char * summary = "Makes branches of a capsule or of the live state.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("source", request.name, "name or id of a capsule; empty: the live state");
    visit("count", request.count, "0: as many as seeds, or one");
    visit("seeds", List{request.seeds}, "noise keys, one a branch: 1;2;3; empty: derived ones");
    visit("names", List{request.names}, "one a branch: a;b;c; empty: names are made");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    visit("branches", names_of(response.branches), "their names: a;b;c");
    visit("evicted", join(response.evicted), EVICTED);
  }
};

struct Rollback
{
  using Service = srv::Rollback;
  static constexpr const char * node = "Rollback";
  static constexpr const char * service = "rollback";
  static constexpr const char * summary = "Returns to an earlier boundary of the live lineage.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("steps", request.steps, "control steps back; 0: to the parent capsule");
    visit("publish", request.publish, "false: hold until Resume; true: go on at once if safe");
    visit("set_seed", request.set_seed, "false: the noise key of the capsule goes on");
    visit("seed", request.seed, "new noise key, with set_seed");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    visit("steps_back", response.steps_back, "control steps really gone back");
    visit("step", response.step, "of the live state after it");
    visit("generation", response.generation, "of the live state after it");
  }
};

struct Preview
{
  using Service = srv::Preview;
  static constexpr const char * node = "Preview";
  static constexpr const char * service = "preview";
  static constexpr const char * summary =
    "Chunks that branches would plan on the current observation; nothing is commanded.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("branches", List{request.names}, "names or ids: a;b;c; empty: the live state");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    visit("chunks", response.chunks, "one a branch, in that order");
  }
};

struct ResetEpisode
{
  using Service = srv::ResetEpisode;
  static constexpr const char * node = "ResetEpisode";
  static constexpr const char * service = "reset_episode";
  static constexpr const char * summary = "Begins a new episode.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("set_task", request.set_task, "false: the task stays");
    visit("task", request.task, "task text, with set_task");
    visit("set_seed", request.set_seed, "false: the next key of the seed sequence");
    visit("seed", request.seed, "new noise key, with set_seed");
    visit("hold", request.hold, "true: hold until Resume");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    visit("episode", response.episode, "number of the new episode");
    visit("generation", response.generation, "of the live state after it");
  }
};

struct ListCapsules
{
  using Service = srv::ListCapsules;
  static constexpr const char * node = "ListCapsules";
  static constexpr const char * service = "list_capsules";
  static constexpr const char * summary = "All capsules, oldest first.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("include_automatic", request.include_automatic, "true: those of the rollback ring too");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    visit("capsules", names_of(response.capsules), "their names: a;b;c");
    visit("bytes_used", response.bytes_used, "of the device");
    visit("bytes_budget", response.bytes_budget, "of the device");
    visit("host_bytes_used", response.host_bytes_used, "of tier host");
    visit("host_bytes_budget", response.host_bytes_budget, "of tier host; 0: there is none");
  }
};

struct GetCapsule
{
  using Service = srv::GetCapsule;
  static constexpr const char * node = "GetCapsule";
  static constexpr const char * service = "get_capsule";
  static constexpr const char * summary = "What one capsule is; FAILURE where there is none.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("capsule", request.name, "name or id");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    capsule_outputs(response.capsule, visit);
    visit("tier", response.capsule.tier, "device, host or disk");
    visit("lineage", join(response.lineage), "ids from the parent to the root: a;b;c");
    visit("metadata", response.metadata, "JSON");
  }
};

struct DropCapsule
{
  using Service = srv::DropCapsule;
  static constexpr const char * node = "DropCapsule";
  static constexpr const char * service = "drop_capsule";
  static constexpr const char * summary = "Frees a capsule.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("capsule", request.name, "name or id");
    visit("force", request.force, "true: even if pinned");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    visit("bytes_freed", response.bytes_freed, "in its tier");
  }
};

struct SaveCapsule
{
  using Service = srv::SaveCapsule;
  static constexpr const char * node = "SaveCapsule";
  static constexpr const char * service = "save_capsule";
  static constexpr const char * summary = "Writes a capsule to a file in the capsule directory.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("capsule", request.name, "name or id");
    visit("file", request.file, "file name without folders; empty: NAME.capsule");
    visit("replace", request.replace, "true: a file of this name is replaced");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    visit("path", response.path, "where it lies");
    visit("size_bytes", response.size_bytes, "of the file");
  }
};

struct LoadCapsule
{
  using Service = srv::LoadCapsule;
  static constexpr const char * node = "LoadCapsule";
  static constexpr const char * service = "load_capsule";
  static constexpr const char * summary = "Reads a capsule file.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("file", request.file, "file name without folders");
    visit("capsule", request.name, "name for it; empty: the one in the file");
    visit("allow_inexact", request.allow_inexact, "true: another exec id is accepted");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    capsule_outputs(response.capsule, visit);
  }
};

struct MoveCapsule
{
  using Service = srv::MoveCapsule;
  static constexpr const char * node = "MoveCapsule";
  static constexpr const char * service = "move_capsule";
  static constexpr const char * summary = "Moves a capsule between device, host memory and disk.";

  template<class Visit>
  static void inputs(Service::Request & request, Visit && visit)
  {
    visit("capsule", request.name, "name or id");
    visit("tier", request.tier, "device, host or disk");
  }

  template<class Visit>
  static void outputs(const Service::Response & response, Visit && visit)
  {
    capsule_outputs(response.capsule, visit);
    visit("path", response.path, "file that has its bytes; empty: none");
    visit("evicted", join(response.evicted), EVICTED);
  }
};

/// A service whose request has no fields.
struct CommandVerb
{
  using Service = srv::Command;

  template<class Visit>
  static void inputs(Service::Request &, Visit &&) {}

  template<class Visit>
  static void outputs(const Service::Response &, Visit &&) {}
};

struct Pause : CommandVerb
{
  static constexpr const char * node = "Pause";
  static constexpr const char * service = "pause";
  static constexpr const char * summary = "Stops publishing, without a lifecycle change.";
};

struct Resume : CommandVerb
{
  static constexpr const char * node = "Resume";
  static constexpr const char * service = "resume";
  static constexpr const char * summary =
    "Goes on; answered when the first command has left, or when it is known why not.";
};

struct Stop : CommandVerb
{
  static constexpr const char * node = "Stop";
  static constexpr const char * service = "stop";
  static constexpr const char * summary = "The latched stop.";
};

struct ClearStop : CommandVerb
{
  static constexpr const char * node = "ClearStop";
  static constexpr const char * service = "clear_stop";
  static constexpr const char * summary = "Releases the latched stop.";
};

/// Calls `each(Verb{})` for every service, in the order of documents.
template<class Each>
void for_each_verb(Each && each)
{
  each(Snapshot{});
  each(Restore{});
  each(Fork{});
  each(Rollback{});
  each(Preview{});
  each(ResetEpisode{});
  each(ListCapsules{});
  each(GetCapsule{});
  each(DropCapsule{});
  each(SaveCapsule{});
  each(LoadCapsule{});
  each(MoveCapsule{});
  each(Pause{});
  each(Resume{});
  each(Stop{});
  each(ClearStop{});
}

}  // namespace flashrt_ros::bt
