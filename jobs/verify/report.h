// What `verify` found: a row for each thing that it looked at.
//
// Rows are printed as they come, a line each, so that a person sees how far it is. The same rows
// are the JSON file, whose schema is docs/verify.schema.json; docs/verify.md explains each of them.
// The file goes to strangers: names of hosts and users, addresses and the directory are replaced in
// every text of it.
//
// No LibTorch. Threads: any.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"

namespace meshrun::verify {

// kWarning: works, and is slower or stranger than it should be. kNotRun: this site or this launcher
// has not got what it needs.
enum class Result { kOk, kWarning, kWrong, kNotRun };

// "ok", "warning", "WRONG", "not run": on the screen; in the file "wrong" and "not_run".
const char* to_words(Result result);

struct Row {
  // Which stage, and what it looked at there: "collectives", "all_gather_v of uneven pieces".
  std::string stage;
  std::string what;
  Result result = Result::kOk;
  // One sentence, or figures.
  std::string found;
  // Figures by name, with their units: "bytes_per_second".
  std::map<std::string, double> numbers = {};
};

// A line of the table, without its end. Columns are as wide as the longest words that `verify` has
// for them.
std::string line_of(const Row& row);
std::string heading();

// A text and what stands for it in the file.
using Replacements = std::vector<std::pair<std::string, std::string>>;
// Whole words and paths, longer ones first. The domain that follows a name goes with it, and so do
// the labels before a domain. Addresses of IPv4 and IPv6 become <address>.
std::string without_names(std::string text, const Replacements& replacements);

class Report {
 public:
  // `job` tells the files of two runs apart; `added` is called with the line of each new row.
  Report(std::string job, std::function<void(const std::string& line)> added);

  void add(const Row& row);
  // Takes the rows and facts of a file() of the same job, written before its ranks were started
  // again; any other text is passed over. Returns whether it was one.
  bool take_up(const std::string& file);
  // "topology" and "versions" of the file.
  void set(const std::string& name, nlohmann::ordered_json value);
  void replace(const std::string& text, const std::string& replacement);

  // Whether a row of the stage is wrong.
  bool is_wrong(const std::string& stage) const;
  // "links, from host 0 to host 1: ..."; empty: nothing is wrong.
  std::string first_wrong() const;
  // "41 ok, 1 warning, 0 wrong, 2 not run".
  std::string counts() const;
  // Stage of the last row; empty: there is none.
  std::string last_stage() const;
  // Ends with a line break. `is_finished`: no row is to come.
  std::string file(std::chrono::duration<double> took, bool is_finished) const;

 private:
  const std::string job_;
  const std::function<void(const std::string& line)> added_;
  mutable Mutex mutex_;
  std::vector<Row> rows_ MESHRUN_GUARDED_BY(mutex_);
  nlohmann::ordered_json facts_ MESHRUN_GUARDED_BY(mutex_) = nlohmann::ordered_json::object();
  Replacements replacements_ MESHRUN_GUARDED_BY(mutex_);
};

}  // namespace meshrun::verify
