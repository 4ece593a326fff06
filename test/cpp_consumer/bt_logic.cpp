// The part of the BehaviorTree.CPP nodes that needs neither rclcpp nor BehaviorTree.CPP, run by
// itself: requests from ports, ports from responses, ids of retries, the order of the control nodes.
//
//   bt_logic           runs the checks; 0 if all hold
//   bt_logic --model   prints what trees/flashrt_ros_nodes.xml must be

#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "bt_model.hpp"

using namespace flashrt_ros;      // NOLINT
using namespace flashrt_ros::bt;  // NOLINT
using std::chrono::milliseconds;

static int failures = 0;

#define EXPECT(found, expected) \
  do { \
    const auto f = found; \
    const decltype(f) e = expected; \
    if (!(f == e)) { \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " << #found << ": expected " << e << ", found " \
                << f << "\n"; \
      ++failures; \
    } \
  } while (false)

using Text = std::map<std::string, std::string>;

/// Ports of a node as XML has them; those not named have their defaults.
struct Ports
{
  Text text;

  void operator()(const char * port, std::string & value) const {take(port, value);}
  void operator()(const char * port, bool & value) const
  {
    std::string found;
    value = take(port, found) ? found == "true" : value;
  }
  template<class Number>
  void operator()(const char * port, Number & value) const
  {
    std::string found;
    value = take(port, found) ? static_cast<Number>(std::stoull(found)) : value;
  }

private:
  bool take(const char * port, std::string & value) const
  {
    const auto found = text.find(port);
    value = found == text.end() ? value : found->second;
    return found != text.end();
  }
};

template<class Verb>
std::string refusal(const Text & text)
{
  typename Verb::Service::Request request;
  try {
    fill<Verb>(request, Ports{text});
  } catch (const PortError & error) {
    return error.what();
  }
  return "";
}

static bool has(const std::string & text, const std::string & words)
{
  return text.find(words) != std::string::npos;
}

static void requests()
{
  srv::Restore::Request restore;
  const std::string one = fill<Restore>(
    restore, Ports{{{"capsule", "a"}, {"publish", "true"}, {"set_seed", "true"}, {"seed", "7"},
      {"request_id", "mine"}}});
  EXPECT(restore.name, "a");
  EXPECT(restore.publish, true);
  EXPECT(restore.allow_inexact, false);
  EXPECT(restore.seed, 7u);
  EXPECT(restore.request_id, "mine");
  srv::Restore::Request other;
  EXPECT(fill<Restore>(other, Ports{{{"capsule", "b"}, {"publish", "true"}}}) == one, false);

  srv::Fork::Request fork;
  fill<Fork>(fork, Ports{{{"seeds", " 1; 18446744073709551615 ;3;"}, {"names", "a;b;c"}}});
  EXPECT(fork.seeds.size(), 3u);
  EXPECT(fork.seeds[1], 18446744073709551615u);
  EXPECT(fork.names[2], "c");

  // What the service would not heed, or not read, is refused here and not sent.
  EXPECT(has(refusal<Restore>({{"seed", "7"}}), "set_seed=\"true\""), true);
  EXPECT(has(refusal<ResetEpisode>({{"task", "stack"}}), "set_task=\"true\""), true);
  for (const char * seeds : {"1;x", "-1", "1.5", "18446744073709551616"}) {
    EXPECT(has(refusal<Fork>({{"seeds", seeds}}), "seeds: expected whole numbers"), true);
  }
  EXPECT(refusal<Fork>({{"seeds", "1;2"}}), "");
}

static void responses()
{
  Text written;
  auto write = [&](const char * port, const auto & value) {
      if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
        written[port] = std::to_string(value);
      } else {
        written[port] = value;
      }
    };
  srv::Fork::Response fork;
  fork.success = true;
  fork.message = "done";
  fork.branches.resize(2);
  fork.branches[0].name = "a.0";
  fork.branches[1].name = "a.1";
  EXPECT(conclude<Fork>(fork, write), true);
  EXPECT(written["branches"], "a.0;a.1");
  EXPECT(written["message"], "done");
  EXPECT(written["error_code"], "0");

  written = {{"capsule_name", "from before"}};
  srv::Snapshot::Response refused;
  refused.message = "no room";
  refused.error_code = srv::Snapshot::Response::NO_MEMORY;
  EXPECT(conclude<Snapshot>(refused, write), false);
  EXPECT(written["message"], "no room");
  EXPECT(written["error_code"], "10");
  EXPECT(written["capsule_name"], "from before");
  EXPECT(outcome_unknown(refused.error_code), false);
  EXPECT(outcome_unknown(srv::Snapshot::Response::TIMEOUT), true);
}

static void request_ids()
{
  const auto shared = std::make_shared<Conversation>();
  RequestIds ids(milliseconds(100), shared), others(milliseconds(100), shared);
  const auto t0 = RequestIds::Clock::now();
  const std::string first = ids.begin("a", t0);
  EXPECT(ids.begin("a", t0) == first, false);  // answered, or halted: a new intention

  auto lost = [&] {
      const std::string id = ids.begin("a", t0);
      ids.unknown(t0);
      return id;
    };
  std::string id = lost();
  EXPECT(ids.begin("a", t0 + milliseconds(100)), id);
  EXPECT(ids.begin("a", t0) == id, false);  // the retry was answered
  id = lost();
  EXPECT(ids.begin("b", t0) == id, false);
  id = lost();
  EXPECT(ids.begin("a", t0 + milliseconds(101)) == id, false);
  id = lost();
  EXPECT(others.begin("a", t0) == id, false);
  EXPECT(ids.begin("a", t0) == id, false);  // something else was asked in between
}

/// What a control node did, a word a call; each answers RUNNING once before what it is to answer.
struct Play
{
  std::vector<std::string> words;
  std::map<std::string, std::vector<Status>> answers;
  std::map<std::string, bool> waited;

  Status operator()(const std::string & word)
  {
    if (!waited[word]) {
      waited[word] = true;
      return Status::RUNNING;
    }
    waited[word] = false;
    words.push_back(word);
    auto & left = answers[word];
    if (left.empty()) {
      return Status::SUCCESS;
    }
    const Status next = left.front();
    left.erase(left.begin());
    return next;
  }

  std::string story(const std::function<Status()> & tick)
  {
    words.clear();
    Status done = Status::RUNNING;
    for (int i = 0; i < 100 && done == Status::RUNNING; ++i) {
      done = tick();
    }
    std::string text = done == Status::SUCCESS ? "SUCCESS:" : "FAILURE:";
    for (const auto & word : words) {
      text += " " + word;
    }
    return text;
  }
};

static const Status NO = Status::FAILURE;

static void retries()
{
  Play play;
  Retry retry;
  auto tick = [&] {
      return retry.tick(
        3, [&] {return play("snapshot");},
        [&](std::uint32_t n) {return play("restore" + std::to_string(n));},
        [&] {return play("child");}, [&] {return play("drop");});
    };
  EXPECT(play.story(tick), "SUCCESS: snapshot child drop");
  play.answers["child"] = {NO, NO};
  EXPECT(play.story(tick), "SUCCESS: snapshot child restore2 child restore3 child drop");
  EXPECT(retry.attempt(), 3u);
  play.answers["child"] = {NO, NO, NO};
  EXPECT(play.story(tick), "FAILURE: snapshot child restore2 child restore3 child drop");
  play.answers["child"] = {NO};
  play.answers["restore2"] = {NO};
  EXPECT(play.story(tick), "FAILURE: snapshot child restore2 drop");
  play.answers["snapshot"] = {NO};
  EXPECT(play.story(tick), "FAILURE: snapshot");
  play.answers["drop"] = {NO};
  EXPECT(play.story(tick), "SUCCESS: snapshot child drop");
  for (int i = 0; i < 2; ++i) {
    tick();
  }
  retry.reset();  // halted in its child
  play.waited.clear();
  EXPECT(play.story(tick), "SUCCESS: snapshot child drop");
}

static void branches()
{
  Play play;
  Branches branches;
  bool lost = false;
  auto tick = [&] {
      return branches.tick(
        2, [&] {return play("make");},
        [&](std::size_t i) {return play("restore" + std::to_string(i));}, [&] {return lost;},
        [&](std::size_t i) {return play("child" + std::to_string(i));},
        [&] {return play("back");}, [&] {return play("drop");});
    };
  EXPECT(play.story(tick), "SUCCESS: make restore0 child0 drop");
  EXPECT(branches.index(), 0u);
  play.answers["child0"] = {NO};
  EXPECT(play.story(tick), "SUCCESS: make restore0 child0 restore1 child1 drop");
  EXPECT(branches.index(), 1u);
  play.answers = {{"child0", {NO}}, {"child1", {NO}}};
  EXPECT(play.story(tick), "FAILURE: make restore0 child0 restore1 child1 back drop");
  play.answers["restore0"] = {NO};
  EXPECT(play.story(tick), "SUCCESS: make restore0 restore1 child1 drop");
  lost = true;
  play.answers["restore0"] = {NO};
  EXPECT(play.story(tick), "FAILURE: make restore0 drop");
  play.answers["child0"] = {NO};  // a child that fails is not lost
  EXPECT(play.story(tick), "SUCCESS: make restore0 child0 restore1 child1 drop");
  lost = false;
  play.answers["make"] = {NO};
  EXPECT(play.story(tick), "FAILURE: make drop");
  play.answers = {{"child0", {NO}}, {"child1", {NO}}, {"back", {NO}}};
  EXPECT(play.story(tick), "FAILURE: make restore0 child0 restore1 child1 back drop");
}

static void watching()
{
  Watch watch;
  Conversation talk;
  const auto t0 = Watch::Clock::now();
  EXPECT(watch.why_not_running(t0, talk), "no ~/status yet");
  msg::PolicyStatus status;
  status.mode = msg::PolicyStatus::WAITING;
  status.reason = "joint_states is stale";
  status.generation = 4;
  status.tick = 100;
  watch.see(status, t0, talk);
  EXPECT(watch.why_not_running(t0, talk), "WAITING: joint_states is stale");
  status.mode = msg::PolicyStatus::RUNNING;
  watch.see(status, t0, talk);
  EXPECT(watch.why_not_running(t0, talk), "");
  EXPECT(has(watch.why_not_running(t0 + milliseconds(3001), talk), "is the policy node"), true);
  talk.generation = 5;
  EXPECT(watch.why_not_running(t0, talk), "no ~/status since the last verb yet");
  status.tick = 1;  // restarted
  status.generation = 0;
  watch.see(status, t0, talk);
  EXPECT(watch.why_not_running(t0, talk), "");
}

int main(int count, char ** words)
{
  if (count == 2 && std::strcmp(words[1], "--model") == 0) {
    print_model(std::cout);
    return 0;
  }
  requests();
  responses();
  request_ids();
  retries();
  branches();
  watching();
  std::cout << "bt_logic: " << (failures ? "not ok" : "ok") << "\n";
  return failures ? 1 : 0;
}
