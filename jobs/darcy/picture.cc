#include "jobs/darcy/picture.h"

#include <vector>

#include "jobs/figures/panels.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::darcy {

void write_picture(const Shown& shown, const TestErrors& test, int64_t steps,
                   const std::string& path) {
  const std::string title =
      jobs::format("Darcy flow at %lld x %lld: relative L2 test error %.2f %% after %lld steps on ",
                   static_cast<long long>(shown.rows), static_cast<long long>(shown.columns),
                   100 * test.relative_l2, static_cast<long long>(steps)) +
      jobs::ranks(DistributedManager::get().world_size());
  std::vector<std::vector<float>> errors;
  errors.reserve(shown.samples.size());  // panels refer to them
  std::vector<std::vector<jobs::FieldPanel>> rows;
  for (const Shown::Sample& sample : shown.samples) {
    const std::vector<float>& error =
        errors.emplace_back(jobs::difference(sample.predicted, sample.truth));
    const double pressure = jobs::limit_of(sample.truth);
    const auto panel = [&](const char* name, const std::vector<float>& values, double limit,
                           bool is_signed) {
      return jobs::FieldPanel{
          name,  values,   static_cast<int>(shown.rows), static_cast<int>(shown.columns),
          limit, is_signed};
    };
    rows.push_back(
        {panel("Permeability", sample.permeability, jobs::limit_of(sample.permeability), false),
         panel("Pressure, solved", sample.truth, pressure, false),
         panel("Pressure, predicted", sample.predicted, pressure, false),
         panel("Predicted - solved", error, jobs::limit_of(error), true)});
  }
  write_file_atomically(path, jobs::encode_png(jobs::draw_panels(title, rows)));
}

}  // namespace meshrun::darcy
