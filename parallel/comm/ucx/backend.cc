#include "parallel/comm/ucx/backend.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/no_collectives.h"
#include "parallel/comm/ucx/backend_call.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"
#include "parallel/comm/ucx/store_address_book.h"
#include "parallel/comm/ucx/work.h"

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

int64_t digest_of_ways(const UcxBackend::Options& options) {
  Digest digest;
  for (const int host : options.hosts) digest.add(host);
  return static_cast<int64_t>(digest.add(options.sums_in_rank_order).value());
}

ucx::Failure problem_of(const ucx::GroupConfig& config, std::string_view what,
                        const std::string& problem) {
  return {ucx::FailureKind::kInvalidArgument,
          fmt::format("{} of group \"{}\" has wrong arguments on rank {}: {}", what, config.name,
                      config.rank, problem),
          {config.rank},
          true};
}

// The function whose calls all of these are; null: none.
template <typename Calls>
const char* scope_of(const Calls& calls) {
  if (calls.empty()) return nullptr;
  const char* const scope = calls.front().scope.text;
  const bool is_one = std::all_of(calls.begin(), calls.end(),
                                  [&](const auto& call) { return call.scope.text == scope; });
  return is_one ? scope : nullptr;
}

}  // namespace

std::string UcxBackend::words_of(const Calls& calls) {
  for (const Call& call : calls) {
    if (call.is_wrong()) return call.problem();
  }
  if (calls.size() == 1) return calls.front().words();
  const char* const scope = scope_of(calls);
  std::string text =
      fmt::format("{}{} operations at once: ", scope == nullptr ? "" : fmt::format("{} (", scope),
                  calls.size());
  for (size_t i = 0; i < calls.size() && text.size() < ucx::HeaderCheck::kMaxText; ++i) {
    text += (i > 0 ? "; " : "") + (scope == nullptr ? calls[i].words() : calls[i].own_words());
  }
  return scope == nullptr ? text : text + ")";
}

ucx::PieceSizes UcxBackend::sizes_of(const Calls& calls) {
  if (calls.size() == 1) return calls.front().own_sizes;
  // In elements, since each call has slices of its own.
  ucx::PieceSizes all;
  all.sent_slice = all.expected_slice = 1;
  for (const Call& call : calls) {
    const ucx::PieceSizes& its = call.own_sizes;
    for (const int64_t size : its.sent) all.sent.push_back(size * its.sent_slice);
    for (const int64_t size : its.expected) all.expected.push_back(size * its.expected_slice);
  }
  return all;
}

struct UcxBackend::Coalescing {
  c10::intrusive_ptr<UcxWork> work;
  Calls calls;
};

UcxBackend::UcxBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      ways_(digest_of_ways(*options_)),
      timeout_ms_(options_->timeout.count()) {
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

UcxBackend::WorkPtr UcxBackend::submit(Call&& call) {
  const c10d::OpType type = call.type;
  auto calls = std::make_shared<Calls>();
  calls->push_back(std::move(call));
  return submit(std::move(calls), type);
}

UcxBackend::WorkPtr UcxBackend::submit(Calls&& calls, c10d::OpType type) {
  return submit(std::make_shared<Calls>(std::move(calls)), type);
}

UcxBackend::WorkPtr UcxBackend::submit(std::shared_ptr<Calls> calls, c10d::OpType type) {
  check_collectives_allowed([&] { return words_of(*calls); });
  if (coalescing_threads_.load(std::memory_order_relaxed) > 0) {
    MutexLock lock(mu_);
    const auto open = coalescing_.find(std::this_thread::get_id());
    if (open != coalescing_.end()) {
      Coalescing& coalescing = *open->second;
      std::move(calls->begin(), calls->end(), std::back_inserter(coalescing.calls));
      return coalescing.work;
    }
  }
  auto work = c10::make_intrusive<UcxWork>(group_, type);
  start(*work, std::move(calls));
  return work;
}

void UcxBackend::start(UcxWork& work, std::shared_ptr<Calls> all) {
  Calls& calls = *all;
  UcxWork::Results results;
  std::vector<std::pair<at::Tensor, at::Tensor>> to_copy;
  for (Call& call : calls) {
    std::move(call.results.begin(), call.results.end(), std::back_inserter(results));
    // A problem here is one of all ranks; nothing is received.
    if (!call.is_wrong()) {
      std::move(call.to_copy.begin(), call.to_copy.end(), std::back_inserter(to_copy));
    }
    call.to_copy.clear();
  }
  const auto first_message = std::stable_partition(
      calls.begin(), calls.end(), [](const Call& call) { return !call.is_point_to_point(); });
  std::vector<Call> messages(std::make_move_iterator(first_message),
                             std::make_move_iterator(calls.end()));
  calls.erase(first_message, calls.end());

  UcxWork::Operations operations;
  std::optional<ucx::Failure> problem;
  if (!calls.empty()) operations.push_back(start_collective(all));
  for (Call& message : messages) {
    if (message.is_wrong()) {
      // Messages have no header: the other rank learns of it when its time is up.
      if (!problem) {
        problem = problem_of(group_->config(), ucx::name_of(message.kind), message.problem());
      }
    } else {
      operations.push_back(start_point_to_point(std::move(message)));
    }
  }
  work.start(std::move(operations), std::move(results), copies_of(std::move(to_copy)), problem);
}

// What does not depend on where the calls' memory is.
void UcxBackend::fill_in(ucx::OperationSpec& spec, const Calls& calls) {
  const Call& first = calls.front();
  ucx::Signature& signature = spec.signature;
  Digest digest;
  digest.add(ucx::kAlgorithmVersion).add(ways_).add(static_cast<int64_t>(calls.size()));
  std::chrono::nanoseconds timeout{0};
  spec.drive = ucx::Drive::kCaller;
  for (const Call& call : calls) {
    call.append_agreed(digest);
    signature.bytes += call.bytes;
    if (call.is_wrong()) signature.flags |= ucx::kHasProblem;
    if (call.requires_grad) signature.flags |= ucx::kRequiresGrad;
    timeout = std::max(timeout, timeout_of(call.timeout));
    if (call.async) spec.drive = ucx::Drive::kThread;
  }
  spec.timeout = timeout;
  signature.digest = digest.value();
  signature.kind = calls.size() == 1 ? first.kind : ucx::OperationKind::kCoalesced;
  signature.dtype = first.dtype.value_or(DType::kUInt8);
  spec.record.scope = scope_of(calls);
  if (calls.size() > 1) return;
  signature.ndim = first.shape_agrees ? static_cast<uint8_t>(first.shape.size()) : 0;
  signature.root = first.root;
  ucx::FlightRecord& record = spec.record;
  record.ndim = static_cast<uint8_t>(std::min<size_t>(first.shape.size(), record.kSizes));
  std::copy_n(first.shape.begin(), record.ndim, record.shape.begin());
  record.size_count = static_cast<int32_t>(first.sizes.size());
  std::copy_n(first.sizes.begin(), std::min<size_t>(first.sizes.size(), record.kSizes),
              record.sizes.begin());
}

std::shared_ptr<ucx::Operation> UcxBackend::start_collective(const std::shared_ptr<Calls>& calls) {
  ucx::OperationSpec spec;
  // In a child of fork() a lock of the cache may be held for ever: nothing is planned.
  if (group_->is_forked()) return group_->submit(std::move(spec));
  fill_in(spec, *calls);
  spec.record.bytes = spec.signature.bytes;
  spec.sizes = sizes_of(*calls);
  // The calls own the tensors; the words are asked for while they do.
  spec.keep_alive = calls;
  spec.text = [all = calls.get()] { return words_of(*all); };
  if (std::ranges::any_of(*calls, [](const Call& call) { return call.fill != nullptr; })) {
    spec.fill = [all = calls.get()](int32_t piece, int64_t offset, StridedSpan to,
                                    int64_t to_offset, int64_t bytes) {
      for (const Call& call : *all) {
        const auto pieces = static_cast<int32_t>(call.input_pieces.size());
        if (piece < pieces) return call.fill(piece, offset, to, to_offset, bytes);
        piece -= pieces;
      }
    };
  }
  // A header alone is a barrier.
  const ucx::OperationKind kind = calls->front().kind;
  const bool is_header_alone =
      calls->size() == 1 && group_->config().check_headers &&
      (kind == ucx::OperationKind::kBarrier || kind == ucx::OperationKind::kCompare);
  if ((spec.signature.flags & ucx::kHasProblem) == 0 && !is_header_alone) {
    Call::Key key;
    for (const Call& call : *calls) call.append_key(key);
    // By sizes that all ranks know, so that both ends of a message cut alike.
    std::vector<int64_t> shares;  // empty: all of one call
    if (calls->size() > 1) {
      std::vector<int64_t> bytes;
      for (const Call& call : *calls) bytes.push_back(call.bytes);
      shares = ucx::share_messages(ucx::kMaxMessages, bytes);
      key.insert(key.end(), shares.begin(), shares.end());
    }
    spec.schedule = schedules_.get(key, [&] {
      ucx::Place place = group_->place();
      if (!shares.empty()) {
        place.tuning.messages = shares[0];
        place.headers_carry = false;
      }
      ucx::Schedule all = calls->front().schedule(place);
      auto inputs = static_cast<int32_t>(calls->front().inputs.size());
      auto outputs = static_cast<int32_t>(calls->front().outputs.size());
      for (size_t i = 1; i < calls->size(); ++i) {
        place.tuning.messages = shares[i];
        all = ucx::join(std::move(all), (*calls)[i].schedule(place), inputs, outputs);
        inputs += static_cast<int32_t>((*calls)[i].inputs.size());
        outputs += static_cast<int32_t>((*calls)[i].outputs.size());
      }
      return all;
    });
    spec.inputs = std::move(calls->front().inputs);
    spec.outputs = std::move(calls->front().outputs);
    for (size_t i = 1; i < calls->size(); ++i) {
      const Call& call = (*calls)[i];
      spec.inputs.insert(spec.inputs.end(), call.inputs.begin(), call.inputs.end());
      spec.outputs.insert(spec.outputs.end(), call.outputs.begin(), call.outputs.end());
    }
  }
  return group_->submit(std::move(spec));
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
  start(*coalescing->work, std::make_shared<Calls>(std::move(coalescing->calls)));
  return coalescing->work;
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

c10d::ErrorType UcxBackend::getError() {
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
  group_->abort(
      fmt::format("abort() was called on rank {} of group \"{}\"", rank_, group_->config().name));
}

void UcxBackend::shutdown() {
  for (const auto& operation : group_->unfinished()) group_->wait(*operation);
  group_->leave(fmt::format(
      "Group \"{}\" was closed on rank {}, by shutdown() or DistributedManager::cleanup()",
      group_->config().name, rank_));
}

}  // namespace meshrun
