// What one scrape is told, in Prometheus' text format. Threads: a value, no threads.
//
//   Exposition out;
//   out.Gauge("meshrun_nodes", "Nodes by state.").Add(3, {{"state", "healthy"}});
//   out.Text();
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/metrics/buckets.h"
#include "prometheus/metric_family.h"

namespace meshrun::metrics {

using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

inline constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

class Exposition {
 public:
  // Series of one name.
  class Family {
   public:
    Family& Add(double value, const Labels& labels = {});
    Family& Add(const Buckets& buckets, const Labels& labels = {});

   private:
    friend class Exposition;
    Family(Exposition& of, size_t index) : of_(of), index_(index) {}
    prometheus::ClientMetric& New(const Labels& labels);

    Exposition& of_;
    const size_t index_;
  };

  // Names as Prometheus has them: a counter ends in _total. A family without series is left out.
  Family Counter(std::string name, std::string help);
  Family Gauge(std::string name, std::string help);
  Family Histogram(std::string name, std::string help);

  // With the families that have series.
  const std::vector<prometheus::MetricFamily>& families() const { return families_; }
  std::string Text() const;

 private:
  Family New(std::string name, std::string help, prometheus::MetricType type);

  std::vector<prometheus::MetricFamily> families_;
};

// Figures of this process: memory, processor time, descriptors, and which build it is.
void AddProcess(Exposition& out, std::string_view program);

// Reads the certificates of these PEM files: until when each is valid. A file that cannot be read
// is left out.
void AddCertificates(Exposition& out,
                     const std::vector<std::pair<std::string_view, std::string>>& files);

}  // namespace meshrun::metrics
