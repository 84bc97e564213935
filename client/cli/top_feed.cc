#include "client/cli/top_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/render/stacks.h"
#include "core/clock.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kPeriod(1000);
// Jobs of the list, and those of them whose curves are asked for at the beginning.
constexpr int kJobs = 50;
constexpr size_t kCurves = 16;
constexpr int kLogLines = 200;
// A debugger takes up to 20 s.
constexpr std::chrono::seconds kStacksWait(75);
constexpr std::chrono::milliseconds kStopAgain(20);

std::string PathOf(const std::string& job, std::string_view rest = "") {
  return fmt::format("/api/v1/jobs/{}{}", EncodeUrl(job), rest);
}

HttpCall Post(std::string path, std::string body) {
  return {.method = "POST",
          .path = std::move(path),
          .headers = {{"Content-Type", "application/json"}},
          .body = std::move(body)};
}

// 0 where there is none.
int64_t NumberAt(const json& answer, const json::json_pointer& place) {
  if (!answer.contains(place)) return 0;
  const json& value = answer.at(place);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

// Null where there are none.
json* RanksIn(json* answer) {
  const json::json_pointer place("/job/ranks");
  if (!answer->contains(place) || !answer->at(place).is_array()) return nullptr;
  return &answer->at(place);
}

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out.push_back(Visible(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::vector<std::string> OneLineOf(const absl::Status& status) {
  return {OneLine(std::string(status.message()), 1000)};
}

std::vector<std::string> LogLines(const json& answer) {
  std::vector<std::string> out;
  for (const json& piece : answer.value("pieces", json::array())) {
    const std::string label = fmt::format("[{}] ", piece.value("rank", 0));
    for (std::string& line : Lines(piece.value("text", ""))) out.push_back(label + line);
  }
  if (answer.value("more", false)) {
    out.emplace_back("further output has no room here: meshrun logs shows it");
  }
  if (answer.contains("problem")) out.push_back(OneLine(answer.value("problem", ""), 1000));
  if (out.empty()) out.emplace_back("its ranks have written nothing yet");
  return out;
}

std::vector<std::string> StackLines(const json& answer) {
  std::vector<v1::RankStack> stacks;
  for (const json& one : answer.value("stacks", json::array())) {
    v1::RankStack& stack = stacks.emplace_back();
    stack.set_rank(one.value("rank", 0));
    stack.set_place(one.value("place", ""));
    stack.set_text(one.value("text", ""));
    stack.set_error(one.value("error", ""));
  }
  std::vector<std::string> lines = Lines(DescribeStacks(std::move(stacks), Style()));
  if (answer.value("more", false)) {
    lines.emplace_back("those of further ranks have no room here: meshrun stack shows them");
  }
  return lines;
}

}  // namespace

TopFeed::TopFeed(HttpTarget target, Find find, std::function<void()> changed)
    : find_(std::move(find)), changed_(std::move(changed)), target_(std::move(target)) {
  MutexLock lock(mu_);
  model_.address = target_.address;
}

TopFeed::~TopFeed() {
  while (!Stop(kStopAgain)) {
  }
  for (std::thread& thread : threads_) thread.join();
}

void TopFeed::Start() {
  const auto start = [this](std::function<void()> run) {
    {
      MutexLock lock(mu_);
      ++running_;
    }
    threads_.emplace_back([this, run = std::move(run)] {
      run();
      MutexLock lock(mu_);
      --running_;
      woken_.NotifyAll();
    });
  };
  start([this] { Run(); });
  for (const Lane lane : {Lane::kLogs, Lane::kStacks, Lane::kCancels}) {
    start([this, lane] { RunLane(lane); });
  }
}

bool TopFeed::Stop(std::chrono::milliseconds wait) {
  const auto until = std::chrono::steady_clock::now() + wait;
  MutexLock lock(mu_);
  stopping_ = true;
  woken_.NotifyAll();
  while (running_ > 0) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= until) return false;
    // A connection that is made only now has not heard of the first time.
    for (HttpExchange* const call : calls_) call->Stop();
    woken_.WaitUntil(mu_, std::min(until, now + kStopAgain));
  }
  return true;
}

TopModel TopFeed::model() const {
  MutexLock lock(mu_);
  return model_;
}

void TopFeed::Follow(const std::string& job) {
  MutexLock lock(mu_);
  followed_ = job;
  model_.followed = job;
  ranks_due_ = {};
  woken_.NotifyAll();
}

absl::StatusOr<json> TopFeed::Ask(const HttpCall& call) {
  HttpTarget target;
  {
    MutexLock lock(mu_);
    target = target_;
  }
  MESHRUN_ASSIGN_OR_RETURN(const std::unique_ptr<HttpExchange> exchange,
                           HttpExchange::Make(target));
  {
    MutexLock lock(mu_);
    if (stopping_) return absl::CancelledError("meshrun top ends");
    calls_.insert(exchange.get());
  }
  const absl::StatusOr<HttpAnswer> answered = Call(*exchange, call);
  {
    MutexLock lock(mu_);
    calls_.erase(exchange.get());
  }
  MESHRUN_ASSIGN_OR_RETURN(const HttpAnswer answer, answered);
  MESHRUN_ASSIGN_OR_RETURN(const std::string body, BodyOf(answer));
  json value = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::InternalError("the coordinator's answer cannot be read");
  return value;
}

absl::StatusOr<json> TopFeed::AskJob(const std::string& id) {
  const json::json_pointer next_rank("/nextRank");
  const json::json_pointer generation("/job/generation");
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    const auto page_from = [&](int64_t rank) {
      return PathOf(id, fmt::format("?firstRank={}&maxRanks={}", rank, kRanksOfPage));
    };
    MESHRUN_ASSIGN_OR_RETURN(json job, Ask({.path = page_from(0)}));
    json* const ranks = RanksIn(&job);
    int64_t next = ranks == nullptr ? 0 : NumberAt(job, next_rank);
    while (next > 0) {
      MESHRUN_ASSIGN_OR_RETURN(json page, Ask({.path = page_from(next)}));
      // The ranks of another generation are others.
      if (NumberAt(page, generation) != NumberAt(job, generation)) break;
      if (json* const more = RanksIn(&page); more != nullptr) {
        for (json& rank : *more) ranks->push_back(std::move(rank));
      }
      // An answer that does not go on ends it.
      const int64_t after = NumberAt(page, next_rank);
      next = after > next ? after : 0;
    }
    if (next == 0) return job;
  }
  return absl::AbortedError(fmt::format("the ranks of {} change while they are read", id));
}

// All nodes are many: the more there are, the less often they are asked for.
absl::Status TopFeed::RefreshNodes() {
  {
    MutexLock lock(mu_);
    if (std::chrono::steady_clock::now() < nodes_due_) return absl::OkStatus();
  }
  MESHRUN_ASSIGN_OR_RETURN(const json nodes, Ask({.path = "/api/v1/nodes"}));
  MutexLock lock(mu_);
  ReadNodes(nodes, &model_);
  nodes_due_ = std::chrono::steady_clock::now() + NodesPace(model_.nodes.size());
  return absl::OkStatus();
}

std::vector<std::string> TopFeed::Closer(const std::map<std::string, ProgressMeter>& meters) {
  std::vector<std::string> closer;
  const TopJob* followed = nullptr;
  for (const TopJob& job : model_.jobs) {
    if (job.id == followed_) followed = &job;
    const bool is_new = !meters.contains(job.id) && job.progress.has_step();
    if (is_new && job.state == "RUNNING" && closer.size() < kCurves) {
      closer.push_back(job.id);
      model_.meters.erase(job.id);
    }
  }
  const bool is_due = followed == nullptr || followed->ranks.empty() ||
                      std::chrono::steady_clock::now() >= ranks_due_;
  if (followed_.empty() || !is_due) return closer;
  if (std::find(closer.begin(), closer.end(), followed_) == closer.end()) {
    closer.push_back(followed_);
  }
  return closer;
}

absl::Status TopFeed::Refresh() {
  MESHRUN_ASSIGN_OR_RETURN(const json cluster, Ask({.path = "/api/v1/cluster?events=1"}));
  const WallNanos here = Clock::Real().WallNow();
  const auto ahead = NowOf(cluster).value_or(here) - here;
  const auto now = [ahead] { return Clock::Real().WallNow() + ahead; };
  MESHRUN_RETURN_IF_ERROR(RefreshNodes());
  MESHRUN_ASSIGN_OR_RETURN(
      const json jobs,
      Ask({.path = fmt::format("/api/v1/jobs?runningFirst=true&pageSize={}", kJobs)}));
  std::vector<std::string> closer;
  std::string followed;
  {
    MutexLock lock(mu_);
    followed = followed_;
    ReadCluster(cluster, &model_);
    // Jobs whose progress we see for the first time: the curve tells their rate at once.
    const auto meters = model_.meters;
    ReadJobs(jobs, now(), &model_);
    closer = Closer(meters);
  }
  for (const std::string& id : closer) {
    // The curve alone of the others.
    auto job = id == followed ? AskJob(id) : Ask({.path = PathOf(id)});
    // It may be forgotten by now.
    if (absl::IsNotFound(job.status())) {
      MutexLock lock(mu_);
      std::erase_if(model_.jobs, [&](const TopJob& one) { return one.id == id; });
      continue;
    }
    if (!job.ok()) return job.status();
    MutexLock lock(mu_);
    ReadJob(*job, now(), &model_);
    if (id == followed_) {
      const auto ranks = static_cast<size_t>(NumberAt(*job, json::json_pointer("/job/worldSize")));
      ranks_due_ = std::chrono::steady_clock::now() + RanksPace(ranks);
    }
  }
  MutexLock lock(mu_);
  model_.problem.clear();
  return absl::OkStatus();
}

void TopFeed::Run() {
  while (true) {
    const auto next = std::chrono::steady_clock::now() + kPeriod;
    std::string followed;
    {
      MutexLock lock(mu_);
      followed = followed_;
    }
    if (const absl::Status status = Refresh(); !status.ok()) {
      if (absl::IsUnavailable(status)) {
        // It may have moved, or another leads.
        if (auto found = find_(); found.ok()) {
          MutexLock lock(mu_);
          target_ = *std::move(found);
          model_.address = target_.address;
        }
      }
      MutexLock lock(mu_);
      model_.problem = std::string(status.message());
    }
    changed_();
    MutexLock lock(mu_);
    while (!stopping_ && followed == followed_) {
      if (!woken_.WaitUntil(mu_, next)) break;
    }
    if (stopping_) return;
  }
}

void TopFeed::RunLane(Lane lane) {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      while (!stopping_ && tasks_[lane].empty()) woken_.Wait(mu_);
      if (stopping_) return;
      task = std::move(tasks_[lane].front());
      tasks_[lane].pop_front();
    }
    task();
    changed_();
  }
}

void TopFeed::Queue(Lane lane, std::function<void()> task) {
  MutexLock lock(mu_);
  // Whoever asks for another log waits no longer for those before.
  if (lane != Lane::kCancels) tasks_[lane].clear();
  tasks_[lane].push_back(std::move(task));
  woken_.NotifyAll();
}

void TopFeed::AskLogs(const std::string& job, OnLines done) {
  Queue(Lane::kLogs, [this, job, done = std::move(done)] {
    const auto answer = Ask({.path = PathOf(job, fmt::format("/logs?tail={}", kLogLines))});
    done(answer.ok() ? LogLines(*answer) : OneLineOf(answer.status()));
  });
}

void TopFeed::AskStacks(const std::string& job, OnLines done) {
  Queue(Lane::kStacks, [this, job, done = std::move(done)] {
    HttpCall call = Post(PathOf(job, "/stacks"), "{}");
    call.timeout = kStacksWait;
    const auto answer = Ask(call);
    done(answer.ok() ? StackLines(*answer) : OneLineOf(answer.status()));
  });
}

void TopFeed::Cancel(const std::string& job, OnLines done) {
  Queue(Lane::kCancels, [this, job, done = std::move(done)] {
    const auto answer =
        Ask(Post(PathOf(job, "/cancel"), R"({"reason": "cancelled in meshrun top"})"));
    done(answer.ok() ? std::vector<std::string>{fmt::format("{} is being cancelled", job)}
                     : OneLineOf(answer.status()));
  });
}

}  // namespace meshrun::client
