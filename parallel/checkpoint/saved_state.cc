#include "parallel/checkpoint/saved_state.h"

#include <chrono>
#include <string>
#include <vector>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/kept_agreement.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/checkpoint/together.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::detail {
namespace {

// Collective, where ranks save other values, or a rank has none to save. `unsaved`: why this one
// has none.
[[noreturn]] void refuse(c10d::ProcessGroup& group, c10::Device device, const std::string& unsaved,
                         const Digests& own) {
  const std::string problem = common_problem(group, device, unsaved);
  if (!problem.empty()) throw CheckpointFileError(problem);
  C10_THROW_ERROR(ValueError, difference_between_ranks(group, device, &own) +
                                  "; rank 0's values are saved, so all ranks must have the same");
}

}  // namespace

SavedState saved_state(c10d::ProcessGroup& group, const Parts& parts,
                       torch::optim::Optimizer& optimizer, const TrainingProgress& progress,
                       const KeptValues& kept) {
  const c10::Device device = parts.device();
  SavedState state;
  auto& [manifest, tensors, differing] = state;
  do_together(group, device, [&] { tensors = collect(parts, optimizer); });
  manifest.optimizer = optimizer_kind(optimizer);
  manifest.step = progress.step;
  manifest.sampler = progress.sampler;
  manifest.optimizer_options = group_options(optimizer);
  manifest.random_generators = generator_states(device);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  manifest.written = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  // On every rank, since all must keep the same.
  std::string unsaved = raised_by([&] { manifest.kept_values = kept.saved(); });
  if (!unsaved.empty()) unsaved = "the save function of a kept value raised: " + unsaved;
  Digests alike = digests_of_kept(manifest.kept_values);
  alike["the number of steps"] = static_cast<uint64_t>(progress.step);
  if (!unsaved.empty()) alike[unsaved] = 0;
  const std::vector<bool> equal = are_equal(group, device,
                                            {digest_of_states(manifest.random_generators),
                                             digest_of_all(alike), digest_of_outline(tensors)});
  // Where all are equal, all ranks have the same problem, or none.
  if (!equal[1] || !unsaved.empty()) refuse(group, device, unsaved, alike);
  if (!equal[0]) {
    manifest.random_generators_by_rank = gather_states(group, device, manifest.random_generators);
  }
  differing = agree_on(tensors, equal[2], group, device);
  return state;
}

}  // namespace meshrun::detail
