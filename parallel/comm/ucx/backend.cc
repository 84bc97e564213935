#include "parallel/comm/ucx/backend.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/interrupts.h"
#include "parallel/base/no_collectives.h"
#include "parallel/base/thrown_status.h"
#include "parallel/comm/interface/node_number.h"
#include "parallel/comm/ucx/backend_plan.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"
#include "parallel/comm/ucx/store_address_book.h"
#include "parallel/comm/ucx/work.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace meshrun {
namespace {

// "No timeout" of c10d. A program that hangs for a day is wrong.
constexpr std::chrono::hours kLongestTimeout{24};

std::shared_ptr<ucx::Engine> own_engine() {
  ucx::Engine::Options options;
  options.heap = SharedHeap::of_process();
  return ucx::Engine::start(value_or_throw<RendezvousError>(ucx::create_ucx_transport()),
                            std::move(options));
}

ucx::GroupConfig group_config(int rank, int size, const UcxBackend::Options& options) {
  ucx::GroupConfig config;
  config.name = options.group_name;
  config.rank = rank;
  config.size = size;
  for (const uint64_t world_rank : options.global_ranks_in_group) {
    config.world_ranks.push_back(static_cast<int>(world_rank));
  }
  if (config.world_ranks.size() != static_cast<size_t>(size)) config.world_ranks.clear();
  config.hosts = ucx::Hosts(options.hosts);
  config.in_rank_order = options.sums_in_rank_order;
  config.check_headers = options.check_collectives;
  return config;
}

int64_t digest_of_algorithms(const UcxBackend::Options& options) {
  Digest digest;
  for (const int host : options.hosts) digest.add(host);
  return static_cast<int64_t>(digest.add(options.sums_in_rank_order).value());
}

constexpr const char* kOutOfOrder =
    "was called in a continuation (then()) of a future, after a call on the group that the program "
    "makes later, so ranks may call in different orders. Wait for the future before the next call. "
    "With a hook of DistributedDataParallel that calls a collective in a continuation, such as "
    "PowerSGD's, use one bucket (bucket_cap_mb more than all gradients take) and not "
    "find_unused_parameters, whose call comes between.";

ucx::Failure problem_of(const ucx::GroupConfig& config, std::string_view what,
                        const std::string& problem) {
  return {ucx::FailureKind::kInvalidArgument,
          fmt::format("{} of group \"{}\" has wrong arguments on rank {}: {}", what, config.name,
                      config.rank, problem),
          {config.rank},
          true};
}

// The function whose calls all of these are; null: none.
template <typename Plans>
const char* scope_of(const Plans& plans) {
  if (plans.empty()) return nullptr;
  const char* const scope = plans.front().scope.text;
  const bool is_one = std::all_of(plans.begin(), plans.end(),
                                  [&](const auto& plan) { return plan.scope.text == scope; });
  return is_one ? scope : nullptr;
}

}  // namespace

std::string UcxBackend::words_of(const Plans& plans) {
  for (const Plan& plan : plans) {
    if (plan.is_wrong()) return plan.problem();
  }
  if (plans.size() == 1) return plans.front().words();
  const char* const scope = scope_of(plans);
  std::string text =
      fmt::format("{}{} operations at once: ", scope == nullptr ? "" : fmt::format("{} (", scope),
                  plans.size());
  for (size_t i = 0; i < plans.size() && text.size() < ucx::HeaderCheck::kMaxText; ++i) {
    text += (i > 0 ? "; " : "") + (scope == nullptr ? plans[i].words() : plans[i].own_words());
  }
  return scope == nullptr ? text : text + ")";
}

ucx::PieceSizes UcxBackend::sizes_of(const Plans& plans) {
  if (plans.size() == 1) return plans.front().own_sizes;
  // In elements, since each call has slices of its own.
  ucx::PieceSizes all;
  all.sent_slice = all.expected_slice = 1;
  for (const Plan& plan : plans) {
    const ucx::PieceSizes& its = plan.own_sizes;
    for (const int64_t size : its.sent) all.sent.push_back(size * its.sent_slice);
    for (const int64_t size : its.expected) all.expected.push_back(size * its.expected_slice);
  }
  return all;
}

struct UcxBackend::Coalescing {
  c10::intrusive_ptr<UcxWork> work;
  std::shared_ptr<Plans> plans = std::make_shared<Plans>();
};

UcxBackend::UcxBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      algorithms_digest_(digest_of_algorithms(*options_)),
      timeout_ms_(options_->timeout.count()),
      monitored_barrier_(c10::make_intrusive<c10d::PrefixStore>("monitored", store), rank, size,
                         options_->group_name) {
  if (options_->engine == nullptr) options_->engine = own_engine();
  const auto error = options_->engine->join(
      group_config(rank, size, *options_),
      std::make_unique<StoreAddressBook>(store, options_->connect_timeout), &group_);
  if (error) {
    throw RendezvousError(fmt::format("rank {} of {} cannot join the process group \"{}\": {}",
                                      rank, size, options_->group_name, *error));
  }
}

UcxBackend::~UcxBackend() = default;

c10::intrusive_ptr<c10d::Backend::Options> UcxBackend::getBackendOptions() {
  // c10d writes the name of a group that is split off into what it gets.
  auto options = c10::make_intrusive<Options>(*options_);
  options->timeout = std::chrono::milliseconds(timeout_ms_.load());
  return options;
}

bool UcxBackend::supportsTensorAlloc(c10::DeviceIndex index) {
  return index < 0 && SharedHeap::of_process() != nullptr;
}

at::Tensor UcxBackend::allocateTensor(long size, at::TensorOptions options) {
  // LibTorch's reducer lays gradients of complex parameters out as real numbers, and asks for as
  // many complex ones.
  if (const at::ScalarType type = options.dtype().toScalarType(); at::isComplexType(type)) {
    return allocateTensor(2 * size, options.dtype(c10::toRealValueType(type)));
  }
  SharedHeap* const heap = options.device().is_cpu() ? SharedHeap::of_process() : nullptr;
  const size_t bytes = static_cast<size_t>(size) * options.dtype().itemsize();
  void* block = nullptr;
  if (heap != nullptr && heap->used_bytes() + bytes <= heap->size() / 2) {
    block = heap->allocate(bytes);
  }
  if (block == nullptr) return at::empty({size}, options);
  return at::from_blob(
      block, {size}, [heap](void* memory) { heap->free(memory); }, options);
}

void UcxBackend::setTimeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }

std::chrono::nanoseconds UcxBackend::timeout_of(std::chrono::milliseconds asked) const {
  int64_t milliseconds = asked.count() > 0 ? asked.count() : timeout_ms_.load();
  const int64_t longest = std::chrono::milliseconds(kLongestTimeout).count();
  if (milliseconds <= 0 || milliseconds > longest) milliseconds = longest;
  return std::chrono::milliseconds(milliseconds);
}

c10::intrusive_ptr<UcxWork> UcxBackend::put_off(Plans& plans) {
  if (coalescing_threads_.load(std::memory_order_relaxed) == 0) return nullptr;
  MutexLock lock(mu_);
  const auto open = coalescing_.find(std::this_thread::get_id());
  if (open == coalescing_.end()) return nullptr;
  std::move(plans.begin(), plans.end(), std::back_inserter(*open->second->plans));
  return open->second->work;
}

UcxBackend::WorkPtr UcxBackend::submit(std::shared_ptr<Plans> all, c10d::OpType type,
                                       c10::intrusive_ptr<UcxWork> work,
                                       std::function<void()>* finish) {
  Plans& plans = *all;
  std::optional<CallOrder::Call> call;
  if (work == nullptr) {  // a call, and not the end of coalesced ones
    for (Plan& plan : plans) {
      plan.node_number = NodeNumber::current(serial_);
      if (!plan.is_wrong()) plan.keep_inputs_apart(rank_);
    }
    // In a child of fork() the lock may be held for ever.
    if (!plans.empty() && !plans.front().is_point_to_point() && size_ > 1 && !group_->is_forked()) {
      call.emplace(call_order_);
    }
    if (call && call->is_late()) {
      call.reset();
      // All ranks', whose calls may have met others.
      group_->abort(fmt::format("{} of group \"{}\" on rank {} {}", words_of(plans),
                                group_->config().name, rank_, kOutOfOrder),
                    ucx::FailureKind::kMismatch);
    }
    check_collectives_allowed([&] { return words_of(plans); });
    if (auto coalesced = put_off(plans)) return coalesced;
    work = c10::make_intrusive<UcxWork>(group_, type);
  }
  UcxWork::Results results;
  std::vector<std::pair<at::Tensor, at::Tensor>> to_copy;
  bool has_messages = false;
  for (Plan& plan : plans) {
    has_messages = has_messages || plan.is_point_to_point();
    std::move(plan.results.begin(), plan.results.end(), std::back_inserter(results));
    // A problem here is one of all ranks; nothing is received.
    if (!plan.is_wrong()) {
      std::move(plan.to_copy.begin(), plan.to_copy.end(), std::back_inserter(to_copy));
    }
    plan.to_copy.clear();
  }
  std::vector<Plan> messages;
  if (has_messages) messages = take_messages(plans);
  UcxWork::Operations operations;
  if (!plans.empty()) {
    operations.push_back(group_->submit(operation_of(all), [&call] { call.reset(); }));
  }
  std::optional<ucx::Failure> problem;
  for (Plan& message : messages) {
    if (!message.is_wrong()) {
      operations.push_back(group_->submit(message_of(std::move(message))));
    } else if (!problem) {
      // Messages have no header: the other rank learns of it when its time is up.
      problem = problem_of(group_->config(), name_of(message.spec.kind), message.problem());
    }
  }
  work->start(std::move(operations), std::move(results),
              finish != nullptr ? std::move(*finish) : copies_of(std::move(to_copy)), problem);
  return work;
}

std::vector<UcxBackend::Plan> UcxBackend::take_messages(Plans& plans) {
  const auto first = std::stable_partition(
      plans.begin(), plans.end(), [](const Plan& plan) { return !plan.is_point_to_point(); });
  std::vector<Plan> messages(std::make_move_iterator(first), std::make_move_iterator(plans.end()));
  plans.erase(first, plans.end());
  return messages;
}

// What does not depend on where the calls' memory is.
void UcxBackend::fill_in(ucx::OperationSpec& spec, const Plans& plans) const {
  const Plan& first = plans.front();
  ucx::Signature& signature = spec.signature;
  Digest digest, nodes;
  bool is_told = false;
  digest.add(ucx::kAlgorithmVersion)
      .add(algorithms_digest_)
      .add(static_cast<int64_t>(plans.size()));
  std::chrono::nanoseconds timeout{0};
  spec.drive = ucx::Drive::kCaller;
  for (const Plan& plan : plans) {
    plan.append_agreed(digest);
    if (plan.node_number != NodeNumber::kUntold) {
      nodes.add(static_cast<int64_t>(plan.node_number));
      is_told = true;
    }
    signature.bytes += plan.bytes;
    if (plan.is_wrong()) signature.flags |= ucx::kHasProblem;
    if (plan.spec.requires_grad) signature.flags |= ucx::kRequiresGrad;
    timeout = std::max(timeout, timeout_of(plan.spec.timeout));
    if (plan.spec.async) spec.drive = ucx::Drive::kThread;
  }
  spec.timeout = timeout;
  signature.digest = digest.value();
  if (is_told) signature.node = nodes.value() | 1;
  signature.kind = plans.size() == 1 ? first.spec.kind : OperationKind::kCoalesced;
  signature.dtype = first.dtype.value_or(DType::kUInt8);
  ucx::FlightRecord& record = spec.record;
  record.scope = scope_of(plans);
  record.bytes = signature.bytes;
  if (plans.size() > 1) return;
  signature.ndim = first.shape_agrees ? static_cast<uint8_t>(first.shape.size()) : 0;
  signature.root = static_cast<int32_t>(first.spec.root);
  record.ndim = static_cast<uint8_t>(std::min<size_t>(first.shape.size(), record.kSizes));
  std::copy_n(first.shape.begin(), record.ndim, record.shape.begin());
  const at::IntArrayRef sizes = first.agreed_sizes();
  record.size_count = static_cast<int32_t>(sizes.size());
  std::copy_n(sizes.begin(), std::min<size_t>(sizes.size(), record.kSizes), record.sizes.begin());
}

std::shared_ptr<const ucx::Schedule> UcxBackend::schedule_of(const Plans& plans) {
  Plan::Key key;
  for (const Plan& plan : plans) plan.append_key(key);
  // By sizes that all ranks know, so that both ends of a message cut alike.
  std::vector<int64_t> shares;  // empty: all of one call
  if (plans.size() > 1) {
    std::vector<int64_t> bytes;
    for (const Plan& plan : plans) bytes.push_back(plan.bytes);
    shares = ucx::share_messages(ucx::kMaxMessages, bytes);
    key.insert(key.end(), shares.begin(), shares.end());
  }
  return schedules_.get(key, [&] {
    ucx::Place place = group_->place();
    if (!shares.empty()) {
      place.tuning.messages = shares[0];
      place.headers_carry = false;
    }
    ucx::Schedule all = plans.front().schedule(place);
    auto inputs = static_cast<int32_t>(plans.front().inputs.size());
    auto outputs = static_cast<int32_t>(plans.front().outputs.size());
    for (size_t i = 1; i < plans.size(); ++i) {
      place.tuning.messages = shares[i];
      all = ucx::join(std::move(all), plans[i].schedule(place), inputs, outputs);
      inputs += static_cast<int32_t>(plans[i].inputs.size());
      outputs += static_cast<int32_t>(plans[i].outputs.size());
    }
    return all;
  });
}

ucx::OperationSpec UcxBackend::operation_of(const std::shared_ptr<Plans>& plans) {
  ucx::OperationSpec spec;
  // In a child of fork() a lock of the cache may be held for ever: nothing is planned.
  if (group_->is_forked()) return spec;
  fill_in(spec, *plans);
  spec.sizes = sizes_of(*plans);
  // The plans own the tensors; the words are asked for while they do.
  spec.keep_alive = plans;
  spec.text = [all = plans.get()] { return words_of(*all); };
  const auto is_filled = [](const Plan& plan) { return plan.spec.fill != nullptr; };
  if (std::ranges::any_of(*plans, is_filled)) {
    spec.fill = [all = plans.get()](int32_t piece, int64_t offset, StridedSpan to,
                                    int64_t to_offset, int64_t bytes) {
      for (const Plan& plan : *all) {
        const auto pieces = static_cast<int32_t>(plan.input_cuts.size());
        if (piece < pieces) return plan.spec.fill(piece, offset, to, to_offset, bytes);
        piece -= pieces;
      }
    };
  }
  // A header alone is a barrier.
  Plan& first = plans->front();
  const bool is_header_alone =
      plans->size() == 1 && group_->config().check_headers &&
      (first.spec.kind == OperationKind::kBarrier || first.spec.kind == OperationKind::kCompare);
  if ((spec.signature.flags & ucx::kHasProblem) != 0 || is_header_alone) return spec;
  spec.schedule = schedule_of(*plans);
  spec.inputs = std::move(first.inputs);
  spec.outputs = std::move(first.outputs);
  for (size_t i = 1; i < plans->size(); ++i) {
    const Plan& plan = (*plans)[i];
    spec.inputs.insert(spec.inputs.end(), plan.inputs.begin(), plan.inputs.end());
    spec.outputs.insert(spec.outputs.end(), plan.outputs.begin(), plan.outputs.end());
  }
  return spec;
}

void UcxBackend::startCoalescing() {
  check_collectives_allowed([] { return "startCoalescing()"; });
  MutexLock lock(mu_);
  auto& coalescing = coalescing_[std::this_thread::get_id()];
  if (coalescing != nullptr) {
    throw CollectiveArgumentError("startCoalescing() was called twice without endCoalescing()");
  }
  coalescing = std::make_unique<Coalescing>();
  coalescing->work = c10::make_intrusive<UcxWork>(group_, c10d::OpType::COALESCED);
  ++coalescing_threads_;
}

UcxBackend::WorkPtr UcxBackend::endCoalescing() {
  std::unique_ptr<Coalescing> coalescing;
  {
    MutexLock lock(mu_);
    const auto open = coalescing_.find(std::this_thread::get_id());
    if (open == coalescing_.end()) {
      throw CollectiveArgumentError(
          "endCoalescing() was called without startCoalescing() on this thread");
    }
    coalescing = std::move(open->second);
    coalescing_.erase(open);
    --coalescing_threads_;
  }
  return submit(std::move(coalescing->plans), c10d::OpType::COALESCED, coalescing->work);
}

c10::intrusive_ptr<c10d::Backend> UcxBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& given) {
  // All ranks are told the same, so all throw.
  const std::set<int> members(ranks.begin(), ranks.end());
  if (members.empty() || members.size() != ranks.size() || *members.begin() < 0 ||
      *members.rbegin() >= size_) {
    throw GroupError(
        fmt::format("a group of {} ranks cannot be split: name each member once", size_));
  }
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end()) return nullptr;
  auto options = c10::make_intrusive<Options>(*options_);
  options->engine = group_->engine();
  options->global_ranks_in_group.clear();
  options->hosts.clear();
  const std::vector<int>& world_ranks = group_->config().world_ranks;
  for (const int rank : ranks) {
    options->global_ranks_in_group.push_back(
        static_cast<uint64_t>(world_ranks.empty() ? rank : world_ranks[rank]));
    if (!options_->hosts.empty()) options->hosts.push_back(options_->hosts[rank]);
  }
  if (given != nullptr) {
    options->timeout = given->timeout;
    options->group_name = given->group_name;
    options->group_desc = given->group_desc;
  }
  return c10::make_intrusive<UcxBackend>(store, static_cast<int>(found - ranks.begin()),
                                         static_cast<int>(ranks.size()), std::move(options));
}

uint64_t UcxBackend::getSequenceNumberForGroup() { return group_->sequence(); }

NodeNumber UcxBackend::next_node_number() {
  if (group_->is_forked()) return {};  // its locks may be held for ever
  MutexLock lock(mu_);
  const uint64_t operation = group_->last_submitted();
  nodes_ = operation == nodes_after_ ? nodes_ + 1 : 1;
  nodes_after_ = operation;
  return {serial_, operation, nodes_};
}

c10d::ErrorType UcxBackend::getError() {
  // An idle rank reads no messages by itself; this one may say that the group has failed elsewhere.
  group_->poll();
  const std::optional<ucx::Failure> failure = group_->failure();
  if (!failure) return c10d::ErrorType::SUCCESS;
  switch (failure->kind) {
    case ucx::FailureKind::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ucx::FailureKind::kPeerLeft:
    case ucx::FailureKind::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void UcxBackend::abort() {
  monitored_barrier_.end();
  group_->abort(
      fmt::format("abort() was called on rank {} of group \"{}\"", rank_, group_->config().name));
}

void UcxBackend::shutdown() {
  monitored_barrier_.end();
  for (const auto& operation : group_->unfinished()) {
    group_->wait(*operation);
    if (is_interrupted()) break;
  }
  group_->leave(fmt::format(
      "Group \"{}\" was closed on rank {}, by shutdown() or DistributedManager::cleanup()",
      group_->config().name, rank_));
  raise_interrupt();
}

}  // namespace meshrun
