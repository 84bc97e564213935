#include "parallel/checkpoint/piece_snapshots.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/hand_on.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/checkpoint/snapshot_copy.h"
#include "parallel/checkpoint/snapshot_keepers.h"
#include "parallel/checkpoint/told_json.h"
#include "parallel/comm/interface/call_scope.h"

namespace meshrun {

using detail::Contents;
using detail::HeldRegion;
using detail::SnapshotCopy;
using detail::SnapshotId;
using nlohmann::json;

struct PieceSnapshots::Slot {
  // This rank's copy, and what all ranks' copies are together.
  std::optional<SnapshotCopy> own;
  Contents contents;
  // Another rank's; absent until it has arrived.
  std::optional<SnapshotCopy> kept;
  // Memory to be used again; spare_kept is being filled while a copy arrives.
  at::Tensor spare_own, spare_kept;

  void clear() {
    if (own) spare_own = std::move(own->memory);
    if (kept) spare_kept = std::move(kept->memory);
    own.reset();
    kept.reset();
  }
  std::vector<const SnapshotCopy*> copies() const {
    std::vector<const SnapshotCopy*> all;
    if (own) all.push_back(&*own);
    if (kept) all.push_back(&*kept);
    return all;
  }
};

namespace {

// Marks the messages between a rank and its keeper.
constexpr int kSnapshotTag = 0x5a9;
constexpr int64_t kMessage = int64_t{256} << 20;

Contents contents_of(const detail::SavedState& state) {
  Contents contents;
  contents.manifest = EncodeManifest(state.manifest);
  for (size_t kind = 0; kind < state.tensors.size(); ++kind) {
    for (const auto& [name, tensor] : state.tensors[kind]) {
      contents.outlines[kind][name] = tensor.info;
    }
  }
  contents.kept_names =
      detail::kept_names(contents.outlines[detail::kKept], state.manifest.kept_values);
  return contents;
}

// Collective: all snapshots that some rank has a part of, the newest first.
std::vector<SnapshotId> gather_ids(c10d::ProcessGroup& group, c10::Device device,
                                   const std::set<SnapshotId>& own) {
  json told = json::array();
  for (const SnapshotId& id : own) told.push_back({id.generation, id.number, id.step});
  std::set<SnapshotId> all;
  for (const std::string& text : gather_texts(group, device, told.dump())) {
    for (const json& id : json::parse(text)) {
      all.insert({id.at(0).get<uint64_t>(), id.at(1).get<int64_t>(), id.at(2).get<int64_t>()});
    }
  }
  return {all.rbegin(), all.rend()};
}

// Collective: the first tensor of which the ranks together have not all elements; empty: there is
// none. `contents`: the root's.
std::string missing_tensor(c10d::ProcessGroup& group, c10::Device device, int root,
                           const std::vector<HeldRegion>& held, const Contents* contents) {
  json told = json::array();
  for (const HeldRegion& part : held) {
    told.push_back({part.kind, part.name, part.region.is_whole() ? json() : json(part.region)});
  }
  const std::vector<std::string> all = gather_texts(group, device, told.dump());
  std::string missing;
  if (group.getRank() == root) {
    // The parts of each tensor; a whole one is enough.
    detail::ByFile<std::map<std::string, std::vector<Region>>> parts;
    detail::ByFile<std::set<std::string>> whole;
    for (const std::string& text : all) {
      for (const json& part : json::parse(text)) {
        const auto kind = part.at(0).get<size_t>();
        const auto name = part.at(1).get<std::string>();
        if (part.at(2).is_null()) {
          whole[kind].insert(name);
        } else {
          parts[kind][name].push_back(part.at(2).get<Region>());
        }
      }
    }
    for (size_t kind = 0; kind < parts.size(); ++kind) {
      for (const auto& [name, info] : contents->outlines[kind]) {
        const int64_t elements = Region::whole(info.shape).elements();
        if (elements == 0 || whole[kind].contains(name) || !missing.empty()) continue;
        const std::vector<Region>& found = parts[kind][name];
        const bool is_there = !found.empty() && cover_tensor(found) &&
                              Region::whole(found.front().shape).elements() == elements;
        if (!is_there) missing = name;
      }
    }
  }
  return broadcast_text(group, device, missing, root);
}

// A copy's parts, in memory.
void add_parts(std::vector<HeldRegion>& held, const SnapshotCopy& copy) {
  for (const auto& part : copy.parts) {
    held.push_back(part.elements);
    held.back().bytes = copy.bytes_of(part);
  }
}

}  // namespace

PieceSnapshots::PieceSnapshots() {
  for (auto& slot : slots_) slot = std::make_unique<Slot>();
}

PieceSnapshots::~PieceSnapshots() = default;

void PieceSnapshots::take(const World& world, int64_t step, const torch::nn::Module& module,
                          torch::optim::Optimizer& optimizer, const KeptValues& kept) {
  const CallScope scope("the snapshot of ElasticState");
  kept.list_moments();
  const detail::Parts parts(module, kept);
  const detail::SavedState state = saved_state(*world.group, parts, optimizer, {step, {}}, kept);
  TORCH_CHECK_VALUE(state.differing.empty(), "ElasticState: the ranks have other values of ",
                    state.differing, " after step ", step,
                    ", and a snapshot has one for all: they must be equal, or in pieces");
  Slot& slot = *slots_[1 - newest_];
  slot.clear();
  const bool is_first = world.generation != std::exchange(generation_, world.generation);
  if (is_first) number_ = 0;
  slot.own = copy_state({generation_, ++number_, step}, state.tensors, world.group->getRank(),
                        std::exchange(slot.spare_own, {}));
  slot.contents = contents_of(state);
  if (is_first) check_cuts(world, parts.device(), slot);
  newest_ = 1 - newest_;
  exchange(world, parts.device(), slot);
}

// Whether the ranks' own pieces can be put together, which they must be able to after a loss.
void PieceSnapshots::check_cuts(const World& world, c10::Device device, const Slot& slot) const {
  std::vector<HeldRegion> held;
  add_parts(held, *slot.own);
  const std::string missing = missing_tensor(*world.group, device, 0, held, &slot.contents);
  TORCH_CHECK_NOT_IMPLEMENTED(missing.empty(), "ElasticState::snapshot_every: the pieces of ",
                              missing, " that ranks hold are not those of one cut");
}

void PieceSnapshots::exchange(const World& world, c10::Device device, Slot& slot) const {
  c10d::ProcessGroup& group = *world.group;
  if (group.getSize() == 1) return;
  const std::vector<int> keepers = snapshot_keepers(world.nodes);
  const auto rank = group.getRank();
  const auto ward = std::ranges::find(keepers, rank) - keepers.begin();
  const uint64_t sent = slot.own->sent_bytes;
  const std::vector<int64_t> sizes = number_by_rank(group, device, static_cast<int64_t>(sent));
  slot.spare_kept = detail::bytes_in(std::exchange(slot.spare_kept, {}),
                                     static_cast<uint64_t>(sizes[static_cast<size_t>(ward)]));
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const auto visit_messages = [](const at::Tensor& bytes, const auto& visit) {
    for (int64_t from = 0; from < bytes.numel(); from += kMessage) {
      std::vector<at::Tensor> message = {
          bytes.narrow(0, from, std::min(kMessage, bytes.numel() - from))};
      visit(message);
    }
  };
  visit_messages(slot.spare_kept, [&](std::vector<at::Tensor>& message) {
    works.push_back(group.recv(message, static_cast<int>(ward), kSnapshotTag));
  });
  visit_messages(
      slot.own->memory.narrow(0, 0, static_cast<int64_t>(sent)),
      [&](std::vector<at::Tensor>& message) {
        works.push_back(group.send(message, keepers[static_cast<size_t>(rank)], kSnapshotTag));
      });
  for (const auto& work : works) work->wait();
  slot.kept = detail::decode_copy(std::exchange(slot.spare_kept, {}));
  // Whoever goes on knows that all have arrived.
  group.barrier()->wait();
}

void PieceSnapshots::keep_only(uint64_t generation) {
  for (auto& slot : slots_) {
    const auto copies = slot->copies();
    if (copies.empty() || copies.front()->id.generation == generation) continue;
    slot = std::make_unique<Slot>();  // with its memory
  }
}

std::optional<int64_t> PieceSnapshots::newest(uint64_t generation) const {
  const auto& own = slots_[newest_]->own;
  if (!own || own->id.generation != generation) return std::nullopt;
  return own->id.step;
}

PieceSnapshots::Restored PieceSnapshots::restore(const GroupArgument::Handle& group,
                                                 torch::nn::Module& module,
                                                 torch::optim::Optimizer& optimizer,
                                                 const KeptValues& kept) {
  kept.list_moments();
  const detail::Parts parts(module, kept);
  const c10::Device device = parts.device();
  std::set<SnapshotId> ids;
  for (const auto& slot : slots_) {
    for (const SnapshotCopy* const copy : slot->copies()) ids.insert(copy->id);
  }
  std::string problem;
  for (const SnapshotId& id : gather_ids(*group, device, ids)) {
    std::vector<HeldRegion> held;
    const Contents* contents = nullptr;
    for (const auto& slot : slots_) {
      if (slot->own && slot->own->id == id) contents = &slot->contents;
      for (const SnapshotCopy* const copy : slot->copies()) {
        if (copy->id == id) add_parts(held, *copy);
      }
    }
    const std::vector<int64_t> has = number_by_rank(*group, device, contents != nullptr ? 1 : 0);
    const auto root = static_cast<int>(std::ranges::find(has, 1) - has.begin());
    if (root == group->getSize()) continue;
    const std::string missing = missing_tensor(*group, device, root, held, contents);
    if (!missing.empty()) {
      if (problem.empty()) {
        problem = "the snapshot of step " + std::to_string(id.step) +
                  " is not whole: the ranks that had a part of " + missing + " are lost";
      }
      continue;
    }
    Manifest manifest;
    try {
      manifest =
          hand_on(group, root, group->getRank() == root ? std::optional(*contents) : std::nullopt,
                  "the snapshot of step " + std::to_string(id.step), parts, optimizer, kept,
                  [&](std::vector<detail::Target>& targets) {
                    fill_from_regions(group, device, held, targets, {});
                  });
    } catch (const detail::Mismatch& error) {
      C10_THROW_ERROR(ValueError, error.what());
    }
    detail::set_saved_generators(device, manifest, *group);
    // Nothing newer is whole, and what is older is not needed any more.
    for (size_t i = 0; i < slots_.size(); ++i) {
      const auto copies = slots_[i]->copies();
      const bool is_it = !copies.empty() && copies.front()->id == id;
      if (is_it) newest_ = i;
      if (!is_it) slots_[i]->clear();
    }
    return {id.step, ""};
  }
  return {std::nullopt, problem};
}

uint64_t PieceSnapshots::bytes() const {
  uint64_t bytes = 0;
  for (const SnapshotCopy* const copy : slots_[newest_]->copies()) {
    bytes += copy->memory.storage().nbytes();
  }
  return slots_.size() * bytes;
}

}  // namespace meshrun
