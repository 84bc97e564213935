#include "core/metrics/exposition.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <limits>
#include <sstream>

#include "core/certificates/certificate.h"
#include "core/os/files.h"
#include "core/version.h"
#include "prometheus/text_serializer.h"

namespace meshrun::metrics {
namespace {

// When this program's code was loaded: near enough to its start.
const std::time_t kStarted = std::time(nullptr);

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Pages; 0 where /proc does not say.
double ResidentPages() {
  const auto text = os::ReadFile("/proc/self/statm");
  unsigned long all = 0, resident = 0;
  if (!text.ok() || std::sscanf(text->c_str(), "%lu %lu", &all, &resident) != 2) return 0;
  return static_cast<double>(resident);
}

}  // namespace

prometheus::ClientMetric& Exposition::Family::New(const Labels& labels) {
  prometheus::ClientMetric& metric = of_.families_[index_].metric.emplace_back();
  for (const auto& [name, value] : labels)
    metric.label.push_back({std::string(name), std::string(value)});
  return metric;
}

Exposition::Family& Exposition::Family::Add(double value, const Labels& labels) {
  prometheus::ClientMetric& metric = New(labels);
  metric.counter.value = value;
  metric.gauge.value = value;
  return *this;
}

Exposition::Family& Exposition::Family::Add(const Buckets& buckets, const Labels& labels) {
  prometheus::ClientMetric::Histogram& histogram = New(labels).histogram;
  histogram.sample_count = buckets.count();
  histogram.sample_sum = buckets.sum();
  uint64_t below = 0;
  for (size_t i = 0; i < buckets.bounds().size(); ++i) {
    below += buckets.counts()[i];
    histogram.bucket.push_back({below, buckets.bounds()[i]});
  }
  return *this;
}

Exposition::Family Exposition::New(std::string name, std::string help,
                                   prometheus::MetricType type) {
  families_.push_back({std::move(name), std::move(help), type, {}});
  return Family(*this, families_.size() - 1);
}

Exposition::Family Exposition::Counter(std::string name, std::string help) {
  return New(std::move(name), std::move(help), prometheus::MetricType::Counter);
}

Exposition::Family Exposition::Gauge(std::string name, std::string help) {
  return New(std::move(name), std::move(help), prometheus::MetricType::Gauge);
}

Exposition::Family Exposition::Histogram(std::string name, std::string help) {
  return New(std::move(name), std::move(help), prometheus::MetricType::Histogram);
}

std::string Exposition::Text() const {
  std::vector<prometheus::MetricFamily> shown;
  for (const prometheus::MetricFamily& family : families_) {
    if (!family.metric.empty()) shown.push_back(family);
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, shown);
  return out.str();
}

void AddProcess(Exposition& out, std::string_view program) {
  out.Gauge("meshrun_build_info", "The running build: 1, with its version and program as labels.")
      .Add(1, {{"version", kVersion}, {"program", program}});
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  out.Counter("process_cpu_seconds_total", "Processor time of the process, in seconds.")
      .Add(Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  out.Gauge("process_resident_memory_bytes", "Memory of the process that is in use, in bytes.")
      .Add(ResidentPages() * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  out.Gauge("process_start_time_seconds", "When the process started, in seconds since 1970.")
      .Add(static_cast<double>(kStarted));
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (!error) {
    out.Gauge("process_open_fds", "Descriptors that the process has open.")
        .Add(static_cast<double>(std::distance(begin(open), end(open))));
  }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  out.Gauge("process_max_fds", "The most descriptors that the process may have open.")
      .Add(static_cast<double>(files.rlim_cur));
}

void AddCertificates(Exposition& out,
                     const std::vector<std::pair<std::string_view, std::string>>& files) {
  auto family = out.Gauge("meshrun_certificate_expiry_timestamp_seconds",
                          "When the certificate in this file ends, in seconds since 1970.");
  for (const auto& [role, path] : files) {
    if (path.empty()) continue;
    const auto pem = os::ReadFile(path);
    if (!pem.ok()) continue;
    const auto certificate = certificates::ReadCertificate(*pem);
    if (!certificate.ok()) continue;
    family.Add(std::chrono::duration<double>(certificate->not_after).count(), {{"file", role}});
  }
}

}  // namespace meshrun::metrics
