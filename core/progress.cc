#include "core/progress.h"

#include <utility>

namespace meshrun {

bool IsEarlier(const v1::Progress& update, const v1::Progress& known) {
  return update.has_step_at_nanos() && known.has_step_at_nanos() &&
         update.step_at_nanos() < known.step_at_nanos();
}

void MergeProgress(const v1::Progress& update, v1::Progress* known) {
  if (IsEarlier(update, *known)) {
    v1::Progress filled = update;
    MergeProgress(std::exchange(*known, {}), &filled);
    *known = std::move(filled);
    return;
  }
  if (update.has_step()) {
    if (!known->has_step() || known->step() != update.step()) known->clear_step_at_nanos();
    known->set_step(update.step());
    if (update.has_step_at_nanos()) known->set_step_at_nanos(update.step_at_nanos());
  }
  if (update.has_waited_seconds()) known->set_waited_seconds(update.waited_seconds());
  if (update.has_samples()) known->set_samples(update.samples());
  if (update.has_data_seconds()) known->set_data_seconds(update.data_seconds());
  if (update.has_collective_bytes()) known->set_collective_bytes(update.collective_bytes());
  if (update.has_total_steps()) known->set_total_steps(update.total_steps());
  if (update.has_loss()) known->set_loss(update.loss());
  if (!update.note().empty()) known->set_note(update.note());
  for (const auto& [name, value] : update.metrics()) (*known->mutable_metrics())[name] = value;
}

}  // namespace meshrun
