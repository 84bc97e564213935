// How far training is: told to the rank's daemon, which shows it to whoever follows the job, or
// printed where there is none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace meshrun::agent {
struct Progress;
}

namespace meshrun::jobs {

class Progress {
 public:
  // Without a daemon, rank 0 prints a line every `line_every` steps. The world must have been
  // joined.
  Progress(std::string job, int64_t total_steps, int64_t line_every);

  // `step` steps are done; metrics have the same names each time. Never blocks on the daemon.
  void report(int64_t step, double loss, const std::map<std::string, double>& metrics);

  // The end of the job, on every rank: what must arrive. The first line of rank 0's `summary` is
  // the daemon's note: it is known also where rank 0 ends before it has printed anything.
  void finished(int64_t step, std::optional<double> loss,
                const std::map<std::string, double>& metrics, const std::string& summary);
  // After stopping on request: the last step and its loss must arrive, too.
  void stopped(int64_t step, double loss, const std::map<std::string, double>& metrics);

 private:
  void report_reliably(const agent::Progress& progress) const;

  const std::string job_;
  const int64_t total_steps_;
  const int64_t line_every_;
};

}  // namespace meshrun::jobs
