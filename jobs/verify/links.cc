// Links and clocks: two ranks talk, all others wait.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "ATen/Functions.h"
#include "jobs/verify/rates.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::verify {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::steady_clock;

constexpr int kTag = 4711;
constexpr int kRoundTrips = 16;
// A message that takes so long shows the rate; the largest one is sent where none does.
constexpr double kLongEnough = 0.05;
constexpr int64_t kSmallest = int64_t{64} << 10;
constexpr int64_t kLargest = int64_t{64} << 20;
constexpr int64_t kLargestOnGpu = int64_t{1} << 30;
// More rows would hide the rest of the table.
constexpr size_t kMostRows = 8;

class Pair {
 public:
  // `peer`: the other rank of the pair.
  Pair(int peer, c10::Device device)
      : peer_(peer), device_(device), group_(DistributedManager::get().world()) {}

  void send(const at::Tensor& tensor) {
    std::vector<at::Tensor> tensors = {tensor};
    group_->send(tensors, peer_, kTag)->wait();
  }
  at::Tensor receive(at::Tensor into) {
    std::vector<at::Tensor> tensors = {std::move(into)};
    group_->recv(tensors, peer_, kTag)->wait();
    return tensors[0];
  }
  void send_number(int64_t number) { send(at::full({1}, number, options(at::kLong))); }
  int64_t receive_number() { return receive(at::empty({1}, options(at::kLong))).item<int64_t>(); }
  int64_t largest() const { return device_.is_cuda() ? kLargestOnGpu : kLargest; }
  at::Tensor bytes(int64_t count) const { return at::zeros({count}, options(at::kByte)); }

 private:
  at::TensorOptions options(at::ScalarType type) const {
    return at::TensorOptions(type).device(device_);
  }
  const int peer_;
  const c10::Device device_;
  const ProcessGroupPtr group_;
};

// {bytes per second, round trip in seconds}, of the side that sends.
std::vector<double> measure_sending(Pair pair) {
  double round_trip = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto start = steady_clock::now();
    pair.send_number(i);
    pair.receive_number();
    // The first one connects.
    if (i > 0) round_trip = std::min(round_trip, Seconds(steady_clock::now() - start).count());
  }
  double rate = 0;
  for (int64_t size = kSmallest; size <= pair.largest(); size *= 4) {
    const at::Tensor message = pair.bytes(size);
    pair.send_number(size);
    // The first one touches memory that is new on both sides.
    pair.send(message);
    pair.receive_number();
    const auto start = steady_clock::now();
    pair.send(message);
    pair.receive_number();
    const double took = Seconds(steady_clock::now() - start).count();
    const double one_way = std::max(took - round_trip / 2, 1e-9);
    // A short burst passes where traffic is shaped, so the longest message counts.
    rate = static_cast<double>(size) / one_way;
    if (took >= kLongEnough) break;
  }
  pair.send_number(0);
  return {rate, round_trip};
}

void answer_sending(Pair pair) {
  for (int i = 0; i < kRoundTrips; ++i) pair.send_number(pair.receive_number());
  while (const int64_t size = pair.receive_number()) {
    const at::Tensor message = pair.bytes(size);
    for (int i = 0; i < 2; ++i) {
      pair.receive(message);
      pair.send_number(size);
    }
  }
}

struct Way {
  std::string name;
  int from = 0, to = 0;  // ranks
  double rate = 0, round_trip = 0;
};

// Measures ways that share no rank at the same time. Figures are on rank 0.
bool measure(Stage& stage, std::vector<Way>& ways) {
  DistributedManager& manager = DistributedManager::get();
  const int rank = manager.rank();
  const auto values = stage.gather("messages between two ranks", [&]() -> std::vector<double> {
    for (const Way& way : ways) {
      if (way.from == rank) return measure_sending({way.to, manager.device()});
      if (way.to == rank) answer_sending({way.from, manager.device()});
    }
    return {};
  });
  // Those that have nothing to send wait here.
  const bool is_well = stage.exchange().tell(values.empty() ? "" : "well") == "well";
  if (!is_well) return false;
  for (Way& way : ways) {
    if (values.empty()) break;
    way.rate = values[static_cast<size_t>(way.from)].at(0);
    way.round_trip = values[static_cast<size_t>(way.from)].at(1);
  }
  return true;
}

void add_within(Stage& stage, const std::vector<Way>& ways) {
  std::vector<double> rates;
  std::vector<std::string> names;
  double round_trip = 0;
  for (const Way& way : ways) {
    rates.push_back(way.rate);
    names.push_back(way.name);
    round_trip = std::max(round_trip, way.round_trip);
  }
  Verdict verdict = judge_alike(rates, names);
  verdict.found += ", round trip " + time_text(round_trip);
  stage.judge("between two ranks of a host", verdict,
              {{"bytes_per_second", *std::min_element(rates.begin(), rates.end())},
               {"round_trip_seconds", round_trip}});
}

std::optional<double> interface_rate(const Hosts& hosts, const Way& way) {
  const auto speed = [&](int rank) {
    return fastest_interface(
        hosts.facts.at(static_cast<size_t>(hosts.of_rank.at(static_cast<size_t>(rank)))));
  };
  const auto from = speed(way.from);
  const auto to = speed(way.to);
  return from && to ? std::optional(std::min(*from, *to)) : std::nullopt;
}

void add_between(Stage& stage, const Hosts& hosts, std::vector<Way> ways) {
  std::stable_sort(ways.begin(), ways.end(),
                   [](const Way& a, const Way& b) { return a.rate < b.rate; });
  size_t rows = 0;
  for (const Way& way : ways) {
    const Verdict verdict = judge_link(way.rate, way.round_trip, interface_rate(hosts, way));
    if (rows >= kMostRows && verdict.result == Result::kOk) continue;
    ++rows;
    stage.judge(way.name, verdict,
                {{"bytes_per_second", way.rate}, {"round_trip_seconds", way.round_trip}});
  }
}

// Offsets of the other host's clock, against this one: {seconds ahead, round trip in seconds}.
std::vector<double> measure_clock(Pair pair) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  std::vector<double> best = {0, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const int64_t sent = now();
    const auto start = steady_clock::now();
    pair.send_number(i);
    const int64_t theirs = pair.receive_number();
    const double took = Seconds(steady_clock::now() - start).count();
    // The quickest answer says most.
    if (took < best[1]) best = {static_cast<double>(theirs - sent) * 1e-9 - took / 2, took};
  }
  return best;
}

void answer_clock(Pair pair) {
  for (int i = 0; i < kRoundTrips; ++i) {
    pair.receive_number();
    pair.send_number(std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count());
  }
}

}  // namespace

double measure_links(Stage& stage, const Hosts& hosts) {
  constexpr double kMemory = 1e11;
  double slowest = kMemory;
  const auto take_slowest = [&](const std::vector<Way>& ways) {
    for (const Way& way : ways) slowest = std::min(slowest, way.rate);
  };
  std::vector<Way> within;
  for (int host = 0; host < hosts.count(); ++host) {
    const int first = hosts.first_rank[static_cast<size_t>(host)];
    const auto second = std::find(hosts.of_rank.begin() + first + 1, hosts.of_rank.end(), host);
    if (second == hosts.of_rank.end()) continue;
    within.push_back(
        {"host " + std::to_string(host), first, static_cast<int>(second - hosts.of_rank.begin())});
  }
  if (within.empty()) {
    stage.not_run("between two ranks of a host", "each host has one rank");
  } else if (measure(stage, within) && stage.is_first()) {
    add_within(stage, within);
    take_slowest(within);
  }
  if (hosts.count() == 1) {
    stage.not_run("between hosts", "there is one host");
  }
  std::vector<Way> between;
  // A ring, in which no host has two links at once. Two hosts have one link.
  const int links = hosts.count() < 3 ? hosts.count() - 1 : hosts.count();
  for (int phase = 0; phase < 3; ++phase) {
    std::vector<Way> ways;
    for (int host = 0; host < links; ++host) {
      const int next = (host + 1) % hosts.count();
      const bool closes_odd_ring = next == 0 && hosts.count() % 2 == 1;
      if ((closes_odd_ring ? 2 : host % 2) != phase) continue;
      ways.push_back({"from host " + std::to_string(host) + " to host " + std::to_string(next),
                      hosts.first_rank[static_cast<size_t>(host)],
                      hosts.first_rank[static_cast<size_t>(next)]});
    }
    if (ways.empty() || !measure(stage, ways)) continue;
    between.insert(between.end(), ways.begin(), ways.end());
  }
  if (stage.is_first()) {
    add_between(stage, hosts, between);
    take_slowest(between);
  }
  return std::stod(stage.exchange().tell(std::to_string(slowest)));
}

void measure_clocks(Stage& stage, const Hosts& hosts) {
  if (hosts.count() == 1) return stage.not_run("clocks of the hosts", "there is one host");
  const int rank = stage.exchange().rank();
  size_t rows = 0;
  for (int host = 1; host < hosts.count(); ++host) {
    const int peer = hosts.first_rank[static_cast<size_t>(host)];
    const std::string what = "clock of host " + std::to_string(host);
    // Numbers of the CPU's: NCCL groups have ucx beside it for them.
    const auto values = stage.gather(what, [&]() -> std::vector<double> {
      if (rank == 0) return measure_clock({peer, c10::Device(c10::kCPU)});
      if (rank == peer) answer_clock({0, c10::Device(c10::kCPU)});
      return {};
    });
    if (values.empty()) continue;
    const Verdict verdict = judge_clock(values[0].at(0), values[0].at(1), host);
    if (rows >= kMostRows && verdict.result == Result::kOk) continue;
    ++rows;
    stage.judge(what, verdict,
                {{"offset_seconds", values[0][0]}, {"round_trip_seconds", values[0][1]}});
  }
}

}  // namespace meshrun::verify
