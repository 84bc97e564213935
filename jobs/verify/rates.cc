#include "jobs/verify/rates.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "ATen/Functions.h"
#include "agent/agent.h"
#include "jobs/runtime/words.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/all_to_all_v.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/manager/distributed_manager.h"
#include "third_party/libtorch/shims.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/cuda.h"

namespace meshrun::verify {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::steady_clock;

void synchronize() {
  if (DistributedManager::get().device().is_cuda()) torch::cuda::synchronize();
}

// Seconds of one call; the least of several.
double best_time(int repeats, int calls, const std::function<void()>& call) {
  call();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    synchronize();
    const auto start = steady_clock::now();
    for (int c = 0; c < calls; ++c) call();
    synchronize();
    best = std::min(best, Seconds(steady_clock::now() - start).count() / calls);
  }
  return best;
}

constexpr int64_t kCopied = int64_t{64} << 20;
constexpr int64_t kCopiedOnGpu = int64_t{512} << 20;

// Read and written: bytes per second.
double copy_rate(c10::Device device) {
  const int64_t bytes = device.is_cuda() ? kCopiedOnGpu : kCopied;
  const auto options = at::TensorOptions(at::kByte).device(device);
  const at::Tensor from = at::zeros({bytes}, options);
  const at::Tensor to = at::zeros({bytes}, options);
  const double took = best_time(5, device.is_cuda() ? 10 : 1, [&] { to.copy_(from); });
  return 2 * static_cast<double>(bytes) / took;
}

double upload_rate(c10::Device device, bool is_up) {
  const at::Tensor there = at::zeros({kCopied}, at::TensorOptions(at::kByte).device(device));
  const at::Tensor here = at::zeros({kCopied}, at::kByte).pin_memory();
  const double took =
      best_time(3, 3, [&] { is_up ? there.copy_(here, true) : here.copy_(there, true); });
  return static_cast<double>(kCopied) / took;
}

void add_alike(Stage& stage, const std::string& what,
               const std::vector<std::vector<double>>& values, size_t column,
               const std::vector<std::string>& names) {
  std::vector<double> rates;
  std::vector<std::string> of;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (values[rank].size() <= column) continue;
    rates.push_back(values[rank][column]);
    of.push_back(names[rank]);
  }
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  if (rates.empty()) return;
  stage.judge(what, judge_alike(rates, of),
              {{"least_bytes_per_second", *least}, {"most_bytes_per_second", *most}});
}

// ---- collectives

// This rank's own times, in seconds; both sides in turns. `host`: until our call returns, which on
// a GPU is before it is done.
struct Times {
  std::vector<double> ours, theirs, host;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Contest {
  std::string name;
  std::function<void()> ours, theirs;
  double bytes = 0;  // that each rank sends at least
};

std::vector<Contest> contests(const ProcessGroupPtr& theirs, int64_t bytes) {
  DistributedManager& manager = DistributedManager::get();
  const int64_t size = manager.world_size();
  const int64_t count = bytes / 4 / size * size;
  const auto options = at::TensorOptions(at::kFloat).device(manager.device());
  const at::Tensor input = at::ones({count}, options);
  const at::Tensor piece = at::ones({count / size}, options);
  const at::Tensor output = at::empty({count}, options);
  const auto reduce = [input](const ProcessGroupPtr& group) {
    std::vector<at::Tensor> tensors = {input};
    // Zeros stay zeros, however often they are added.
    group->allreduce(tensors)->wait();
  };
  input.zero_();
  const std::vector<int64_t> splits(static_cast<size_t>(size), count / size);
  const double others = static_cast<double>(size - 1) / static_cast<double>(size);
  const auto sent = static_cast<double>(count * 4);
  return {{"all_reduce", [=, group = manager.world()] { reduce(group); }, [=] { reduce(theirs); },
           2 * others * sent},
          {"all_gather_v", [=] { all_gather_v(piece, splits); },
           [=] {
             at::Tensor to = output, from = piece;
             libtorch::all_gather_single(*theirs, to, from)->wait();
           },
           others * sent},
          {"all_to_all_v", [=] { all_to_all_v(input, splits, splits); },
           [=] {
             at::Tensor to = output, from = input;
             std::vector<int64_t> to_splits = splits, from_splits = splits;
             libtorch::all_to_all_single(*theirs, to, from, to_splits, from_splits)->wait();
           },
           others * sent}};
}

Times in_turns(const Contest& contest, int repeats) {
  const auto time = [](const std::function<void()>& call, std::vector<double>* host) {
    const auto start = steady_clock::now();
    call();
    if (host != nullptr) host->push_back(Seconds(steady_clock::now() - start).count());
    synchronize();
    return Seconds(steady_clock::now() - start).count();
  };
  contest.ours();
  contest.theirs();
  synchronize();
  Times times;
  for (int i = 0; i < repeats; ++i) {
    times.ours.push_back(time(contest.ours, &times.host));
    times.theirs.push_back(time(contest.theirs, nullptr));
  }
  return times;
}

// Where other hosts reach this one; empty: this launcher does not say.
std::string own_address(const Hosts& hosts) {
  if (hosts.count() == 1) return "127.0.0.1";
  agent::Agent* const agent = DistributedManager::get().agent();
  if (agent == nullptr) return "";
  const auto world = agent->World(std::chrono::seconds(10));
  TORCH_CHECK(world.ok(),
              "the daemon does not say where the hosts are: ", world.status().ToString());
  return world->addresses.at(static_cast<size_t>(DistributedManager::get().rank()));
}

ProcessGroupPtr make_gloo(const Hosts& hosts) {
  DistributedManager& manager = DistributedManager::get();
  ProcessGroupOptions options;
  options.connect_timeout = std::chrono::seconds(20);
  options.timeout = std::chrono::seconds(20);
  options.name = "verify_gloo";
  options.address = own_address(hosts);
  return make_process_group(c10::make_intrusive<c10d::PrefixStore>("verify_gloo", manager.store()),
                            manager.rank(), manager.world_size(), "gloo", options);
}

}  // namespace

Hosts find_hosts() {
  Hosts hosts;
  hosts.of_rank = DistributedManager::get().node_ranks();
  if (hosts.of_rank.empty()) {
    hosts.of_rank.assign(static_cast<size_t>(DistributedManager::get().world_size()), 0);
  }
  const int count = *std::max_element(hosts.of_rank.begin(), hosts.of_rank.end()) + 1;
  for (int host = 0; host < count; ++host) {
    const auto first = std::find(hosts.of_rank.begin(), hosts.of_rank.end(), host);
    hosts.first_rank.push_back(static_cast<int>(first - hosts.of_rank.begin()));
  }
  return hosts;
}

void measure_memory(Stage& stage, const Hosts& hosts) {
  DistributedManager& manager = DistributedManager::get();
  std::vector<std::string> host_names, rank_names;
  for (size_t rank = 0; rank < hosts.of_rank.size(); ++rank) {
    host_names.push_back("host " + std::to_string(hosts.of_rank[rank]));
    rank_names.push_back("rank " + std::to_string(rank));
  }
  const std::string what = "copies in a host's memory";
  const auto values = stage.gather(what, [&]() -> std::vector<double> {
    if (manager.local_rank() != 0) return {};
    return {copy_rate(c10::Device(c10::kCPU))};
  });
  add_alike(stage, what, values, 0, host_names);
  if (!manager.cuda()) {
    const bool has_gpu = std::any_of(hosts.facts.begin(), hosts.facts.end(),
                                     [](const HostFacts& facts) { return !facts.gpus.empty(); });
    stage.not_run("copies in a GPU's memory",
                  has_gpu ? "the ranks are on CPUs: this program has no CUDA, or they got no GPU "
                            "(--gpus-per-proc 1)"
                          : "no host has a GPU");
    return;
  }
  const auto gpus = stage.gather("copies in a GPU's memory", [&]() -> std::vector<double> {
    const c10::Device device = manager.device();
    return {copy_rate(device), upload_rate(device, true), upload_rate(device, false)};
  });
  add_alike(stage, "copies in a GPU's memory", gpus, 0, rank_names);
  add_alike(stage, "from pinned memory to a GPU", gpus, 1, rank_names);
  add_alike(stage, "from a GPU to pinned memory", gpus, 2, rank_names);
}

void measure_collectives(Stage& stage, const Hosts& hosts, double link) {
  DistributedManager& manager = DistributedManager::get();
  const std::string name = manager.cuda() ? "NCCL" : "Gloo";
  const std::string what = "beside torch's " + name;
  if (manager.world_size() == 1) return stage.not_run(what, "one rank sends nothing");
  if (!manager.cuda() && hosts.count() > 1 && manager.agent() == nullptr) {
    return stage.not_run(what, "without meshrun's daemon Gloo does not find the other hosts");
  }
  ProcessGroupPtr theirs;
  const bool is_there = stage.check(
      what,
      [&] {
        // On GPUs the world is c10d's own NCCL, of which ours are calls in another form.
        theirs = manager.cuda() ? manager.world() : make_gloo(hosts);
        return std::string();
      },
      [&] { return "the same ranks, both in turns"; });
  // Rank 0 knows it of all.
  if (stage.exchange().tell(is_there ? "there" : "") != "there") return;
  constexpr int64_t kSmall = 4096;
  constexpr double kLargeTakes = 0.03;
  // On a slow link small messages, too, else this takes minutes.
  const double most = (manager.cuda() ? 256.0 : 16.0) * (1 << 20);
  const double large = std::clamp(link * kLargeTakes, 65536.0, most);
  struct Size {
    int64_t bytes;
    int repeats;
  };
  for (const Size& size : {Size{kSmall, 31}, Size{static_cast<int64_t>(large) / 4096 * 4096, 9}}) {
    for (const Contest& contest : contests(theirs, size.bytes)) {
      const std::string row = contest.name + " of " + size_text(static_cast<double>(size.bytes));
      const auto values = stage.gather(row, [&]() -> std::vector<double> {
        const Times times = in_turns(contest, size.repeats);
        return {median(times.ours), median(times.theirs), median(times.host)};
      });
      if (values.empty()) continue;
      const double ours = values[0].at(0);
      const double baseline = values[0].at(1);
      const double host = values[0].at(2);
      std::string found = time_text(ours);
      if (manager.cuda()) found += " (" + time_text(host) + " of the host)";
      if (size.bytes != kSmall) found += ", " + rate_text(contest.bytes / ours);
      found += "; " + name + " " + time_text(baseline) +
               jobs::format(", %.2f times as long", baseline / ours);
      stage.judge(row, {Result::kOk, found},
                  {{"bytes", static_cast<double>(size.bytes)},
                   {"seconds", ours},
                   {"host_seconds", host},
                   {"bytes_per_second", contest.bytes / ours},
                   {"baseline_seconds", baseline}});
    }
  }
}

}  // namespace meshrun::verify
