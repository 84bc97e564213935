// The events of a trace in the format of Chrome's trace viewer, which Perfetto reads too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshrun::client {

// Times count from the earliest one: readers drop what is before their beginning.
class TraceWriter {
 public:
  using Json = nlohmann::ordered_json;
  using Nanos = int64_t;

  void Name(int process, const std::string& name, int order) {
    Meta(process, 0, "process_name", {{"name", name}});
    Meta(process, 0, "process_sort_index", {{"sort_index", order}});
  }
  void NameThread(int process, int thread, const std::string& name) {
    Meta(process, thread, "thread_name", {{"name", name}});
    Meta(process, thread, "thread_sort_index", {{"sort_index", thread}});
  }
  void AddSlice(int process, int thread, const std::string& name, const char* category, Nanos begin,
                Nanos end, Json arguments) {
    AddTimed(begin, {{"name", name},
                     {"cat", category},
                     {"ph", "X"},
                     {"ts", 0.0},
                     {"dur", Micros(std::max<Nanos>(end - begin, 0))},
                     {"pid", process},
                     {"tid", thread},
                     {"args", std::move(arguments)}});
  }
  void AddInstant(int process, const std::string& name, Nanos at, Json arguments) {
    AddTimed(at, {{"name", name},
                  {"cat", "event"},
                  {"ph", "i"},
                  {"s", "g"},
                  {"ts", 0.0},
                  {"pid", process},
                  {"tid", 0},
                  {"args", std::move(arguments)}});
  }
  // Where it has a time, the earliest of all.
  std::optional<Nanos> began() const { return began_; }
  Json Take() {
    for (const auto& [index, at] : times_) events_[index]["ts"] = Micros(at - *began_);
    return std::move(events_);
  }

 private:
  static double Micros(Nanos nanos) { return static_cast<double>(nanos) / 1e3; }
  void AddTimed(Nanos at, Json event) {
    began_ = std::min(at, began_.value_or(at));
    times_.emplace_back(events_.size(), at);
    events_.push_back(std::move(event));
  }
  void Meta(int process, int thread, const char* what, Json arguments) {
    events_.push_back({{"name", what},
                       {"ph", "M"},
                       {"pid", process},
                       {"tid", thread},
                       {"args", std::move(arguments)}});
  }

  Json events_ = Json::array();
  // By its place among the events.
  std::vector<std::pair<size_t, Nanos>> times_;
  std::optional<Nanos> began_;
};

}  // namespace meshrun::client
