#include "parallel/bagua/process_group.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/bagua/collectives.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/no_collectives.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::bagua {
namespace {

// What a rank asks new_group() for, as the others are told.
constexpr int64_t kTextBytes = 256;

DistributedManager& manager() { return DistributedManager::get(); }

// Empty where `ranks` can form a group.
std::string problem_of(const std::vector<int>& ranks, int world_size) {
  if (ranks.empty()) return "a process group needs at least one rank";
  std::set<int> seen;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size) {
      return fmt::format("rank {} of [{}] is not in a job of {} ranks", rank,
                         fmt::join(ranks, ", "), world_size);
    }
    if (!seen.insert(rank).second) {
      return fmt::format("rank {} is named twice in [{}]", rank, fmt::join(ranks, ", "));
    }
  }
  return "";
}

std::vector<int> sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::optional<c10::Stream> stream_of_default_group() {
  if (!manager().cuda()) return std::nullopt;
  const c10::impl::VirtualGuardImpl device(manager().device().type());
  return device.getStreamFromGlobalPool(manager().device(), /*isHighPriority=*/true);
}

// One number of each rank of a communicator.
std::vector<int> numbers_of_ranks(int own, const Communicator& comm, const c10::Device& device) {
  const at::Tensor mine = at::full({1}, own, at::device(device).dtype(at::kInt));
  const at::Tensor all = at::empty({comm.nranks()}, mine.options());
  allgather(mine, all, comm);
  const at::Tensor here = all.cpu();
  return {here.const_data_ptr<int>(), here.const_data_ptr<int>() + here.numel()};
}

// Raises GroupError on all ranks where they do not ask for the same group, or for one that cannot
// be: with the digest at the head, since the text may not fit.
void agree_on(const std::vector<int>& ranks, const std::string& problem) {
  const Communicator everybody = default_process_group().get_global_communicator();
  const std::string text = fmt::format("[{}]", fmt::join(ranks, ", "));
  const auto digest = static_cast<int64_t>(Fingerprint(text));
  const at::Tensor mine = at::zeros({kTextBytes}, at::kByte);
  auto* bytes = mine.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &digest, sizeof(digest));
  bytes[sizeof(digest)] = problem.empty() ? 0 : 1;
  const std::string& told = problem.empty() ? text : problem;
  constexpr size_t kHead = sizeof(digest) + 1;
  std::copy_n(told.data(), std::min(told.size(), size_t{kTextBytes} - kHead - 1), bytes + kHead);
  const at::Tensor all = at::empty({everybody.nranks(), kTextBytes}, at::kByte);
  allgather(mine, all, everybody);

  const auto* first = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (int rank = 0; rank < everybody.nranks(); ++rank) {
    const char* theirs = first + rank * kTextBytes;
    if (theirs[sizeof(digest)] != 0) {
      throw GroupError(
          fmt::format("new_group() has wrong arguments on rank {}: {}", rank, theirs + kHead));
    }
    if (std::memcmp(theirs, first, sizeof(digest)) != 0) {
      throw GroupError(
          fmt::format("new_group() was called with ranks {} on rank 0 and with {} on rank {}: all "
                      "ranks of the job make the same groups in the same order",
                      first + kHead, theirs + kHead, rank));
    }
  }
}

}  // namespace

// For cleanup(), which ends communicators that outlive their groups too.
static void remember(const Communicator& communicator);

struct BaguaProcessGroup::State {
  std::string name;
  std::string key;  // of the communicators
  std::vector<int> ranks;
  int rank = 0;  // this one, in the job
  NodeMembers nodes;
  std::optional<c10::Stream> stream;
  c10::intrusive_ptr<c10d::Store> store;            // null: the manager's
  c10::intrusive_ptr<c10d::ProcessGroup> existing;  // what the global communicator is made of

  std::mutex making;
  std::map<std::string, Communicator> made;
  bool is_closed = false;

  Communicator communicator(const std::string& kind, const std::vector<int>& its_ranks) {
    const std::lock_guard lock(making);
    const auto found = made.find(kind);
    if (found != made.end()) return found->second;
    if (is_closed) {
      throw GroupAbortedError(fmt::format(
          "the process group \"{}\" has ended with DistributedManager::cleanup()", name));
    }
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    const std::string its_name = fmt::format("{}/{}", key, kind);
    if (std::find(its_ranks.begin(), its_ranks.end(), rank) != its_ranks.end()) {
      group = kind == "global" && existing ? existing
                                           : manager().make_group(its_name, its_ranks, store);
    }
    const Communicator communicator(its_name, its_ranks, std::move(group), stream);
    remember(communicator);
    return made.emplace(kind, communicator).first->second;
  }
};

// The groups of this process. One instance, which DistributedManager::cleanup() empties.
class ProcessGroups {
 public:
  static ProcessGroups& get() {
    static auto& groups = *new ProcessGroups;
    return groups;
  }

  void start(const c10::intrusive_ptr<c10d::Store>& store) {
    if (has_default()) {
      throw GroupError("init_process_group() was called before: there is one default group");
    }
    if (!DistributedManager::is_initialized()) DistributedManager::initialize();
    manager().at_cleanup([] { get().clear(); });
    const std::vector<int> ranks = all_ranks(manager().world_size());
    const BaguaProcessGroup first =
        with_nodes(ranks, stream_of_default_group(), "0", "bagua/0", store,
                   members_by_node(ranks, manager().node_ranks()));
    const std::lock_guard lock(mutex_);
    store_ = store;
    default_ = first;
  }

  bool has_default() {
    const std::lock_guard lock(mutex_);
    return default_.has_value();
  }

  BaguaProcessGroup default_group() {
    const std::lock_guard lock(mutex_);
    if (!default_) {
      throw GroupError(
          "there is no default process group: call init_process_group() on all ranks first");
    }
    return *default_;
  }

  std::string next_number() {
    const std::lock_guard lock(mutex_);
    return std::to_string(++count_);
  }

  // The next group's of that name: "name", "name/2", ...
  std::string number_of(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const int number = ++numbers_[name];
    return number == 1 ? name : fmt::format("{}/{}", name, number);
  }

  void take(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (!names_.insert(name).second) {
      throw GroupError(fmt::format("there is a process group \"{}\" already", name));
    }
  }

  void remember(const Communicator& communicator) {
    const std::lock_guard lock(communicators_mutex_);
    std::erase_if(communicators_, [](const auto& weak) { return weak.expired(); });
    communicators_.push_back(communicator.state_);
  }

  // `ranks` are valid.
  BaguaProcessGroup make(std::vector<int> ranks, std::optional<c10::Stream> stream,
                         std::string name, std::string key,
                         c10::intrusive_ptr<c10d::ProcessGroup> existing = {}) {
    if (!stream) stream = default_group().stream();
    c10::intrusive_ptr<c10d::Store> store;
    {
      const std::lock_guard lock(mutex_);
      store = store_;
    }
    NodeMembers members = members_by_node(ranks, manager().node_ranks());
    BaguaProcessGroup group = with_nodes(std::move(ranks), stream, std::move(name), std::move(key),
                                         store, std::move(members));
    group.state_->existing = std::move(existing);
    return group;
  }

 private:
  BaguaProcessGroup with_nodes(std::vector<int> ranks, std::optional<c10::Stream> stream,
                               std::string name, std::string key,
                               c10::intrusive_ptr<c10d::Store> store, NodeMembers nodes) {
    auto state = std::make_shared<BaguaProcessGroup::State>();
    state->name = std::move(name);
    state->key = std::move(key);
    state->ranks = std::move(ranks);
    state->rank = manager().rank();
    state->nodes = std::move(nodes);
    state->stream = stream;
    state->store = std::move(store);
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const auto& weak) { return weak.expired(); });
    all_.push_back(state);
    return BaguaProcessGroup(std::move(state));
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : all_) {
      if (const auto state = weak.lock()) BaguaProcessGroup::close(*state);
    }
    all_.clear();
    {
      const std::lock_guard communicators_lock(communicators_mutex_);
      for (const auto& weak : communicators_) {
        if (auto state = weak.lock()) Communicator(std::move(state)).close();
      }
      communicators_.clear();
    }
    default_.reset();
    store_.reset();
    names_.clear();
    numbers_.clear();
    count_ = 0;
  }

  std::mutex mutex_;
  std::optional<BaguaProcessGroup> default_;
  std::vector<std::weak_ptr<BaguaProcessGroup::State>> all_;
  std::mutex communicators_mutex_;  // innermost
  std::vector<std::weak_ptr<Communicator::State>> communicators_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::set<std::string> names_;
  std::map<std::string, int> numbers_;
  int count_ = 0;
};

static void remember(const Communicator& communicator) {
  ProcessGroups::get().remember(communicator);
}

BaguaProcessGroup::BaguaProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

void BaguaProcessGroup::close(State& state) {
  const std::lock_guard lock(state.making);
  state.is_closed = true;
  state.store.reset();
  state.existing.reset();
}

BaguaProcessGroup::BaguaProcessGroup(std::vector<int> ranks, std::optional<c10::Stream> stream,
                                     std::string group_name) {
  const std::string problem = problem_of(ranks, manager().world_size());
  if (!problem.empty()) {
    throw GroupError(fmt::format("the process group \"{}\": {}", group_name, problem));
  }
  ProcessGroups& groups = ProcessGroups::get();
  groups.default_group();
  groups.take(group_name);
  const std::string key = "bagua/named/" + group_name;
  *this = groups.make(sorted(std::move(ranks)), stream, std::move(group_name), key);
}

Communicator BaguaProcessGroup::get_global_communicator() const {
  return state_->communicator("global", state_->ranks);
}

Communicator BaguaProcessGroup::get_inter_node_communicator() const {
  return state_->communicator("inter", leaders_of(state_->nodes));
}

Communicator BaguaProcessGroup::get_intra_node_communicator() const {
  const std::vector<int> mine = intra_ranks();
  // Where this rank is not a member, nor is there a node to speak of.
  return state_->communicator("intra", mine);
}

const std::string& BaguaProcessGroup::group_name() const { return state_->name; }
const std::vector<int>& BaguaProcessGroup::ranks() const { return state_->ranks; }
const NodeMembers& BaguaProcessGroup::nodes() const { return state_->nodes; }
std::optional<c10::Stream> BaguaProcessGroup::stream() const { return state_->stream; }

std::vector<int> BaguaProcessGroup::intra_ranks() const {
  return members_beside(state_->nodes, state_->rank);
}

std::vector<int> BaguaProcessGroup::inter_ranks() const { return leaders_of(state_->nodes); }

void init_process_group(const c10::intrusive_ptr<c10d::Store>& store) {
  ProcessGroups::get().start(store);
}

bool is_initialized() { return ProcessGroups::get().has_default(); }

BaguaProcessGroup default_process_group() { return ProcessGroups::get().default_group(); }

BaguaProcessGroup new_group(const std::optional<std::vector<int>>& ranks,
                            std::optional<c10::Stream> stream) {
  ProcessGroups& groups = ProcessGroups::get();
  const std::vector<int> members =
      ranks ? sorted(*ranks)
            : all_ranks(default_process_group().get_global_communicator().nranks());
  check_collectives_allowed([] { return "new_group"; });
  {
    const CallScope scope("new_group");
    agree_on(members, problem_of(members, manager().world_size()));
  }
  const std::string number = groups.next_number();
  return groups.make(members, stream, number, "bagua/" + number);
}

BaguaProcessGroup from_torch_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                   std::optional<c10::Stream> stream) {
  if (!group) throw GroupError("from_torch_group() got no process group");
  check_collectives_allowed([] { return "from_torch_group"; });
  ProcessGroups& groups = ProcessGroups::get();
  groups.default_group();
  const std::vector<c10::Device> devices = group->getDeviceTypes();
  const bool has_cpu = std::any_of(devices.begin(), devices.end(),
                                   [](const c10::Device& device) { return device.is_cpu(); });
  // A handle knows how many ranks it has, not which of the job they are.
  const Communicator itself("bagua/torch", all_ranks(group->getSize()), group, stream);
  const CallScope scope("from_torch_group");
  const std::vector<int> ranks = numbers_of_ranks(
      manager().rank(), itself, has_cpu ? c10::Device(c10::kCPU) : manager().device());
  const std::string name = groups.number_of(fmt::format("{}", fmt::join(ranks, ",")));
  return groups.make(ranks, stream, group->getGroupName(), "bagua/torch/" + name, group);
}

}  // namespace meshrun::bagua
