// A day, or a week, of a cluster that fifty users share, in seconds: what the state machine decides
// where some hosts cannot prepare jobs, one user floods the queue with jobs that can never run, and
// everybody makes requests that are wrong.
//
//   shared_day --days 7 --seed 3
//   shared_day --swf trace.txt            the jobs of a trace in the Standard Workload Format, too
//   shared_day --swf trace.txt --alone    of jobs that can run, those of the trace alone
//
// The jobs have the shape of public traces of parallel machines: sizes that are mostly powers of
// two, run times over four orders of magnitude, and arrivals that follow the hours of a day
// (Lublin and Feitelson, "The workload on parallel supercomputers", 2003). Hosts answer at once.
// Prints one JSON object. The exit status is 1 where a rule is broken:
//   - No job fails, since none has a fault.
//   - The bad hosts, and no others, are quarantined.
//   - No job waits beside room for it: see Room.
//   - The same seed gives the same actions.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/state_machine.h"
#include "core/proto_time.h"

namespace meshrun::coordinator::simulation {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr int kHosts = 100;
constexpr int kBadHosts = 3;
constexpr uint32_t kSlots = 16;
constexpr int kGreedy = 10;
constexpr int kModest = 39;  // with mallory, fifty
constexpr int kBacklog = 20;
constexpr int kJobsOfADay = 20;  // of a modest user
constexpr size_t kMostImpossible = 600;
// Before it the queue fills.
constexpr hours kWarmUp{2};
constexpr seconds kBetweenLooks{10};
// A host that refuses a job delays its next try by seconds.
constexpr minutes kMostBesideRoom{1};

struct Options {
  uint64_t seed = 1;
  double days = 1;
  std::string swf;
  bool alone = false;
};

struct Work {
  std::string user;
  uint32_t nodes = 1;
  uint32_t procs = 1;
  std::chrono::nanoseconds run{0};
  std::chrono::nanoseconds asked{0};
  bool modest = false;
  // There was room for it when it was submitted.
  bool had_room = false;

  uint32_t slots() const { return nodes * procs; }
};

// What running jobs leave free. There is room for a job if enough hosts have its slots free even
// without as many hosts as the widest waiting job needs, which the head of the queue may reserve.
// Such a job must start at once, whatever is before it in the queue: jobs that can never run
// reserve nothing.
struct Room {
  // Healthy hosts with at least so many slots free.
  std::array<uint32_t, kSlots + 1> hosts_with{};
  // Hosts of the widest job that waits and could run.
  uint32_t widest = 0;

  bool IsFor(const Work& work) const { return hosts_with[work.procs] >= work.nodes + widest; }
};

struct Ended {
  // Digest of the actions of its first part.
  uint64_t digest = 0;
  nlohmann::json figures;
  std::string broken;
};

class Day {
 public:
  explicit Day(const Options& options) : options_(options), random_(options.seed) {}

  Ended Run(std::chrono::nanoseconds length, std::chrono::nanoseconds part);

 private:
  enum class What { kGreedy, kModest, kTrace, kFlood, kRequests, kHost, kEnd };
  struct Item {
    std::chrono::nanoseconds at;
    uint64_t order;
    What what;
    // Index of the host and what it says, for kHost.
    size_t host = 0;
    v1::OpenSessionRequest says;
    // Whose turn it is, for kGreedy and kModest; the job, for kEnd.
    std::string name;
    uint64_t generation = 0;
    Work work;
    bool operator<(const Item& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };
  struct Running {
    Work work;
    std::chrono::nanoseconds submitted{0};
    std::chrono::nanoseconds started{-1};
    std::set<size_t> hosts;
    std::map<size_t, v1::Prepare> prepared;
    // Since when there is room for it, if it waits; negative: there is none.
    std::chrono::nanoseconds room_since{-1};

    bool waits() const {
      return started.count() < 0 && work.nodes <= static_cast<uint32_t>(kHosts - kBadHosts);
    }
  };

  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  Work Shape(const std::string& user, bool modest);
  void Later(std::chrono::nanoseconds in, Item item) {
    item.at = now_ + in;
    item.order = ++order_;
    queue_.push(std::move(item));
  }
  void Step(v1::StateEvent event);
  void OnMessage(size_t host, const v1::OpenSessionResponse& message);
  void Say(size_t host, const v1::Fence& fence, v1::OpenSessionRequest says);
  void Submit(const Work& work);
  void TopUp(const std::string& user);
  void Flood();
  void WrongRequests();
  Room LookForRoom() const;
  void LookWhoWaits();
  void End(const std::string& id, uint64_t generation);
  void Do(Item item);
  void Hello();

  const Options options_;
  std::mt19937_64 random_;
  StateMachine machine_;
  std::chrono::nanoseconds now_{0};
  uint64_t order_ = 0;
  uint64_t call_ = 1'000'000;
  std::priority_queue<Item> queue_;
  std::map<uint64_t, Work> submits_;
  std::map<std::string, Running> jobs_;
  std::map<std::string, int> queued_;
  std::vector<std::string> impossible_;
  std::map<int, int> codes_;
  std::map<std::string, double> slots_started_;
  std::map<std::string, int> own_jobs_;
  std::vector<double> waits_;
  double used_ = 0;
  int ended_ = 0;
  int failed_ = 0;
  uint64_t digest_ = 0;
  std::chrono::nanoseconds slowest_{0};
  std::chrono::nanoseconds longest_beside_room_{0};
  // How many jobs that have ended had room when they were submitted.
  int had_room_ = 0;
};

// How many jobs an hour of the day has, against the others.
double Rate(std::chrono::nanoseconds now) {
  const double hour = std::fmod(std::chrono::duration<double>(now).count() / 3600, 24);
  return 1 + 0.8 * std::sin((hour - 9) / 24 * 2 * M_PI);
}

Work Day::Shape(const std::string& user, bool modest) {
  Work work;
  work.user = user;
  work.modest = modest;
  if (modest) {
    work.procs = 1;
  } else if (Uniform() < 0.24) {
    work.procs = 1;
  } else {
    const auto log = std::uniform_int_distribution<int>(1, 6)(random_);
    const uint32_t ranks = 1u << log;
    work.nodes = std::max(ranks / kSlots, 1u);
    work.procs = ranks / work.nodes;
  }
  // Minutes mostly, hours sometimes.
  const double minutes_long =
      std::lognormal_distribution<double>(modest ? 1.0 : 3.0, modest ? 1.0 : 0.9)(random_);
  work.run = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::clamp(minutes_long * 60, 5.0, 4 * 3600.0)));
  work.asked = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(work.run) * (1.2 + 3 * Uniform()));
  return work;
}

void Day::Step(v1::StateEvent event) {
  event.set_now_nanos(now_.count());
  *event.mutable_wall() = ToProtoTimestamp(std::chrono::seconds(1'700'000'000) + now_);
  event.set_random(random_());
  event.set_end_of_batch(true);
  const auto began = std::chrono::steady_clock::now();
  const Actions actions = machine_.Step(event);
  slowest_ = std::max<std::chrono::nanoseconds>(slowest_, std::chrono::steady_clock::now() - began);
  std::vector<std::pair<size_t, v1::OpenSessionResponse>> said;
  for (const Action& action : actions.list) {
    digest_ = digest_ * 1'099'511'628'211u + std::hash<std::string>()(DebugText(action));
    if (const auto* const send = std::get_if<SendToSession>(&action)) {
      said.emplace_back(send->session_id - 1, send->message);
    } else if (const auto* const reply = std::get_if<ReplyToCall>(&action)) {
      ++codes_[static_cast<int>(reply->status.code())];
      const auto submit = submits_.find(reply->call_id);
      if (submit == submits_.end()) continue;
      const Work work = std::move(submit->second);
      submits_.erase(submit);
      if (!reply->status.ok()) continue;
      const auto& job = dynamic_cast<const v1::SubmitJobResponse&>(*reply->response).job();
      if (work.user == "mallory") {
        impossible_.push_back(job.job_id());
        continue;
      }
      // Its first messages may have come before its answer.
      Running& running = jobs_[job.job_id()];
      running.work = work;
      running.submitted = now_;
    }
  }
  for (const auto& [host, message] : said) OnMessage(host, message);
}

void Day::Say(size_t host, const v1::Fence& fence, v1::OpenSessionRequest says) {
  *says.mutable_fence() = fence;
  says.mutable_fence()->set_term(1);
  says.mutable_fence()->set_incarnation(1);
  Item item;
  item.what = What::kHost;
  item.host = host;
  item.says = std::move(says);
  Later(milliseconds(5), std::move(item));
}

void Day::OnMessage(size_t host, const v1::OpenSessionResponse& message) {
  const v1::Fence& fence = message.fence();
  const std::string& id = fence.job_id();
  v1::OpenSessionRequest says;
  if (message.has_prepare()) {
    if (host < kBadHosts) {
      says.mutable_prepare_result()->set_error("no space left on device");
    } else {
      says.mutable_prepare_result()->set_ok(true);
      says.mutable_prepare_result()->set_master_port(20'000);
      jobs_[id].prepared[host] = message.prepare();
    }
    Say(host, fence, std::move(says));
  } else if (message.has_start()) {
    Running& running = jobs_[id];
    running.hosts.insert(host);
    for (const v1::RankAssignment& rank : running.prepared[host].ranks())
      (*says.mutable_ranks_started()->mutable_pids())[rank.rank()] = 4711;
    Say(host, fence, std::move(says));
    if (running.started.count() >= 0) return;
    running.started = now_;
    Item item;
    item.what = What::kEnd;
    item.name = id;
    item.generation = fence.generation();
    Later(running.work.run, std::move(item));
  } else if (message.has_stop() || message.has_forget()) {
    says.mutable_generation_ended();
    if (message.has_stop()) Say(host, fence, std::move(says));
  }
}

void Day::End(const std::string& id, uint64_t generation) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  const Running running = std::move(found->second);
  jobs_.erase(found);
  v1::Fence fence;
  fence.set_job_id(id);
  fence.set_generation(generation);
  for (const size_t host : running.hosts) {
    const auto prepared = running.prepared.find(host);
    if (prepared == running.prepared.end()) continue;
    for (const v1::RankAssignment& rank : prepared->second.ranks()) {
      v1::OpenSessionRequest exit;
      exit.mutable_rank_exit()->set_rank(rank.rank());
      exit.mutable_rank_exit()->set_process_generation(rank.process_generation());
      exit.mutable_rank_exit()->set_process_rank(rank.process_rank());
      Say(host, fence, std::move(exit));
    }
    v1::OpenSessionRequest ended;
    ended.mutable_generation_ended();
    Say(host, fence, std::move(ended));
  }
  ++ended_;
  const Work& work = running.work;
  --own_jobs_[work.user];
  const double held =
      work.slots() * std::chrono::duration<double>(
                         now_ - std::max<std::chrono::nanoseconds>(running.started, kWarmUp))
                         .count();
  if (now_ > kWarmUp) used_ += held;
  if (running.started > kWarmUp) slots_started_[work.user] += work.slots();
  if (work.had_room) {
    ++had_room_;
    longest_beside_room_ = std::max(longest_beside_room_, running.started - running.submitted);
  }
  if (work.modest || options_.alone)
    waits_.push_back(std::chrono::duration<double>(running.started - running.submitted).count());
}

Room Day::LookForRoom() const {
  Room room;
  for (const v1::Node* const node : machine_.nodes().Present(/*healthy_only=*/true)) {
    const uint32_t free = kSlots - std::min(node->slots_used(), kSlots);
    for (uint32_t slots = 0; slots <= free; ++slots) ++room.hosts_with[slots];
  }
  for (const auto& [id, job] : jobs_) {
    if (job.waits()) room.widest = std::max(room.widest, job.work.nodes);
  }
  return room;
}

void Day::LookWhoWaits() {
  const Room room = LookForRoom();
  for (auto& [id, job] : jobs_) {
    if (!job.waits() || !room.IsFor(job.work)) {
      job.room_since = std::chrono::nanoseconds(-1);
      continue;
    }
    if (job.room_since.count() < 0) job.room_since = now_;
    longest_beside_room_ = std::max(longest_beside_room_, now_ - job.room_since);
  }
}

void Day::Submit(const Work& work) {
  v1::StateEvent event;
  event.set_call_id(++call_);
  event.mutable_caller()->set_user(work.user);
  event.mutable_caller()->set_own_jobs_only(true);
  v1::JobSpec& spec = *event.mutable_submit_job()->mutable_spec();
  spec.set_name("job");
  spec.add_command("./train");
  spec.set_min_nodes(work.nodes);
  spec.mutable_procs_per_node()->set_count(work.procs);
  spec.set_max_restarts(3);
  if (work.asked.count() > 0) *spec.mutable_time_limit() = ToProtoDuration(work.asked);
  Work& noted = submits_[event.call_id()] = work;
  // Until the bad hosts are known, they delay a job that comes to them, and others take its room.
  noted.had_room = work.user != "mallory" && now_ > kWarmUp && LookForRoom().IsFor(work);
  ++own_jobs_[work.user];
  Step(std::move(event));
}

void Day::TopUp(const std::string& user) {
  int waiting = 0;
  for (const auto& [id, job] : jobs_) waiting += job.work.user == user && job.started.count() < 0;
  for (; waiting < kBacklog; ++waiting) Submit(Shape(user, /*modest=*/false));
}

// Jobs of more nodes than there are, or of none that has the label.
void Day::Flood() {
  for (int i = 0; i < 50; ++i) {
    Work work;
    work.user = "mallory";
    work.nodes = kHosts + 1 + static_cast<uint32_t>(i % 40);
    Submit(work);
  }
  while (impossible_.size() > kMostImpossible) {
    v1::StateEvent cancel;
    cancel.set_call_id(++call_);
    cancel.mutable_caller()->set_user("mallory");
    cancel.mutable_caller()->set_own_jobs_only(true);
    cancel.mutable_cancel_job()->set_job_id(impossible_.front());
    impossible_.erase(impossible_.begin());
    Step(std::move(cancel));
  }
}

void Day::WrongRequests() {
  const auto send = [this](v1::StateEvent event) {
    event.set_call_id(++call_);
    event.mutable_caller()->set_user("mallory");
    event.mutable_caller()->set_own_jobs_only(event.has_cancel_job() || event.has_update_job() ||
                                              event.has_drain_node() || event.has_submit_job());
    Step(std::move(event));
  };
  const std::string others = jobs_.empty() ? "nobody" : jobs_.begin()->first;
  v1::StateEvent event;
  event.mutable_cancel_job()->set_job_id(others);
  send(event);
  event.mutable_update_job()->set_job_id(others);
  event.mutable_update_job()->set_priority(1'000'000);
  send(event);
  event.mutable_drain_node()->set_node("host-50");
  send(event);
  event.mutable_submit_job()->mutable_spec()->set_name("../../etc");
  send(event);
  event.mutable_submit_job()->mutable_spec()->set_min_nodes(4'000'000'000u);
  send(event);
  event.mutable_list_jobs()->set_page_token("9.9.9");
  send(event);
  event.mutable_list_jobs()->set_page_size(1'000'000);
  send(event);
  event.mutable_read_logs()->set_job_id(others);
  for (int rank = 0; rank < 20'000; ++rank) event.mutable_read_logs()->add_ranks(rank);
  send(event);
  event.mutable_get_job()->set_job_id("");
  send(event);
  event.mutable_list_usage()->set_after(UINT64_MAX);
  send(event);
}

void Day::Do(Item item) {
  switch (item.what) {
    case What::kGreedy:
      TopUp(item.name);
      Later(minutes(1), std::move(item));
      break;
    case What::kModest: {
      // One at a time: whoever has nothing else is next.
      if (own_jobs_[item.name] == 0) Submit(Shape(item.name, /*modest=*/true));
      const double mean = 24 * 3600.0 / kJobsOfADay / Rate(now_);
      const double in = std::exponential_distribution<double>(1 / mean)(random_);
      Later(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(in)),
            std::move(item));
      break;
    }
    case What::kTrace:
      Submit(item.work);
      break;
    case What::kFlood:
      Flood();
      Later(minutes(10), std::move(item));
      break;
    case What::kRequests:
      WrongRequests();
      Later(minutes(3), std::move(item));
      break;
    case What::kHost: {
      v1::StateEvent event;
      event.mutable_session_message()->set_session_id(item.host + 1);
      *event.mutable_session_message()->mutable_message() = std::move(item.says);
      Step(std::move(event));
      break;
    }
    case What::kEnd:
      End(item.name, item.generation);
      break;
  }
}

void Day::Hello() {
  for (size_t host = 0; host < kHosts; ++host) {
    v1::StateEvent event;
    event.mutable_session_message()->set_session_id(host + 1);
    v1::OpenSessionRequest& message = *event.mutable_session_message()->mutable_message();
    message.mutable_fence()->set_incarnation(1);
    v1::Hello& hello = *message.mutable_hello();
    hello.set_node_id(fmt::format("id-{}", host));
    hello.set_name(fmt::format("host-{}", host));
    hello.add_addresses(fmt::format("10.0.0.{}", host + 1));
    hello.mutable_resources()->set_slots(kSlots);
    hello.mutable_resources()->set_cores(kSlots);
    Step(std::move(event));
  }
}

// Fields 2, 4, 5, 9 and 12 of a line are submit time, run time, processors, time asked for, user.
std::vector<std::pair<std::chrono::nanoseconds, Work>> ReadTrace(const std::string& path) {
  std::vector<std::pair<std::chrono::nanoseconds, Work>> out;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == ';') continue;
    std::istringstream words(line);
    std::array<double, 18> field{};
    for (double& value : field) words >> value;
    if (field[3] <= 0 || field[4] <= 0) continue;
    Work work;
    work.user = fmt::format("user{}", static_cast<int>(field[11]));
    const auto ranks = static_cast<uint32_t>(std::min(field[4], 1600.0));
    work.nodes = (ranks + kSlots - 1) / kSlots;
    work.procs = std::min(ranks, kSlots);
    work.run = seconds(static_cast<int64_t>(field[3]));
    work.asked = seconds(static_cast<int64_t>(std::max(field[8], field[3] + 1)));
    out.emplace_back(seconds(static_cast<int64_t>(field[1])), work);
  }
  return out;
}

Ended Day::Run(std::chrono::nanoseconds length, std::chrono::nanoseconds part) {
  Ended out;
  v1::StateEvent restore;
  v1::RestoreEvent& settings = *restore.mutable_restore();
  settings.set_term(1);
  // Hosts do not go away here: tests/coordinator/simulation:simulate has that.
  *settings.mutable_lease() = ToProtoDuration(hours(24 * 30));
  *settings.mutable_heartbeat_interval() = ToProtoDuration(hours(1));
  settings.mutable_retention()->set_ended_jobs(1000);
  settings.mutable_quarantine()->set_refused_jobs(3);
  Step(std::move(restore));
  Hello();
  const auto begin = [this](What what, const std::string& name, std::chrono::nanoseconds in) {
    Item item;
    item.what = what;
    item.name = name;
    Later(in, std::move(item));
  };
  const int greedy = options_.alone ? 0 : kGreedy;
  const int modest = options_.alone ? 0 : kModest;
  for (int i = 0; i < greedy; ++i) begin(What::kGreedy, fmt::format("greedy{}", i), seconds(i));
  for (int i = 0; i < modest; ++i) begin(What::kModest, fmt::format("modest{}", i), minutes(i));
  begin(What::kFlood, "", minutes(5));
  begin(What::kRequests, "", minutes(1));
  if (!options_.swf.empty()) {
    for (auto& [at, work] : ReadTrace(options_.swf)) {
      Item item;
      item.what = What::kTrace;
      item.work = std::move(work);
      Later(at, std::move(item));
    }
  }
  std::chrono::nanoseconds next_look = kBetweenLooks;
  while (now_ < length) {
    // The state machine takes a longer silence for a coordinator that stood still.
    std::chrono::nanoseconds next = now_ + seconds(1);
    if (!queue_.empty()) next = std::min(next, queue_.top().at);
    if (const auto due = machine_.NextDeadline()) next = std::min(next, std::max(*due, now_));
    now_ = next;
    if (!queue_.empty() && queue_.top().at <= now_) {
      Item item = queue_.top();
      queue_.pop();
      Do(std::move(item));
    } else {
      v1::StateEvent tick;
      tick.mutable_tick();
      Step(std::move(tick));
    }
    if (out.digest == 0 && now_ >= part) out.digest = digest_;
    // Not an item of the queue: that would be another day.
    if (now_ >= next_look) {
      LookWhoWaits();
      next_look = now_ + kBetweenLooks;
    }
  }
  // What runs at the end has been used too.
  for (const auto& [id, job] : jobs_) {
    if (job.started.count() < 0 || now_ <= kWarmUp) continue;
    used_ += job.work.slots() * std::chrono::duration<double>(
                                    now_ - std::max<std::chrono::nanoseconds>(job.started, kWarmUp))
                                    .count();
  }
  for (const auto& [id, job] : machine_.jobs().all()) {
    failed_ += job.view.state() == v1::JOB_STATE_FAILED;
  }
  const double length_seconds = std::chrono::duration<double>(length - kWarmUp).count();
  const double bound = (kHosts - kBadHosts) * kSlots * length_seconds;
  double least = 1e300;
  double most = 0;
  double sum = 0;
  for (int i = 0; i < greedy; ++i) {
    const double share = slots_started_[fmt::format("greedy{}", i)];
    least = std::min(least, share);
    most = std::max(most, share);
    sum += share;
  }
  const double mean = sum / kGreedy;
  const double deviation = sum > 0 ? std::max(most - mean, mean - least) / mean : 0;
  std::sort(waits_.begin(), waits_.end());
  size_t quarantined = 0;
  for (const auto& [id, node] : machine_.nodes().all()) quarantined += node.record.quarantined();
  nlohmann::json codes;
  for (const auto& [code, count] : codes_) codes[fmt::to_string(code)] = count;
  out.figures = {
      {"jobs_ended", ended_},
      {"failed", failed_},
      {"impossible_queued", impossible_.size()},
      {"utilisation", used_ / bound},
      {"share_deviation", deviation},
      {"modest_jobs", waits_.size()},
      {"modest_wait_median", waits_.empty() ? 0 : waits_[waits_.size() / 2]},
      {"modest_wait_most", waits_.empty() ? 0 : waits_.back()},
      {"had_room", had_room_},
      {"longest_beside_room", std::chrono::duration<double>(longest_beside_room_).count()},
      {"quarantined", quarantined},
      {"slowest_step_ms", std::chrono::duration<double, std::milli>(slowest_).count()},
      {"codes", codes}};
  if (failed_ > 0) out.broken = fmt::format("{} jobs failed, and none had a fault", failed_);
  if (quarantined != kBadHosts)
    out.broken = fmt::format("{} of {} bad hosts are quarantined", quarantined, kBadHosts);
  if (longest_beside_room_ > kMostBesideRoom) {
    out.broken = fmt::format("a job waited for {} s beside room for it",
                             std::chrono::duration_cast<seconds>(longest_beside_room_).count());
  }
  return out;
}

}  // namespace
}  // namespace meshrun::coordinator::simulation

int main(int argc, char** argv) {
  using namespace meshrun::coordinator::simulation;
  Options options;
  CLI::App app("A day of a cluster that fifty users share");
  app.add_option("--seed", options.seed, "Of all that is drawn")->capture_default_str();
  app.add_option("--days", options.days, "How long")->capture_default_str();
  auto* const swf = app.add_option("--swf", options.swf, "Jobs of this trace too");
  app.add_flag("--alone", options.alone, "Of jobs that can run, those of the trace alone")
      ->needs(swf);
  CLI11_PARSE(app, argc, argv);
  const auto length = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.days * 86'400));
  // The same again, and not only the same figures: each action.
  const auto part = std::min<std::chrono::nanoseconds>(length, std::chrono::hours(3));
  const auto began = std::chrono::steady_clock::now();
  Ended day = Day(options).Run(length, part);
  day.figures["seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (Day(options).Run(part, part).digest != day.digest)
    day.broken = "the same day was another one";
  day.figures["broken"] = day.broken;
  fmt::print("{}\n", day.figures.dump());
  return day.broken.empty() ? 0 : 1;
}
