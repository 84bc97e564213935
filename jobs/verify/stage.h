// One stage of `verify` on all ranks: what they find becomes rows of rank 0's report.
//
// All ranks make the same calls in the same order. Threads: one. Errors: those that say that a rank
// is lost leave every function here, since another world may follow; all others become rows.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "jobs/verify/exchange.h"
#include "jobs/verify/limits.h"
#include "jobs/verify/report.h"

namespace meshrun::verify {

class Stage {
 public:
  Stage(std::string name, Exchange& exchange, Report& report)
      : name_(std::move(name)), exchange_(exchange), report_(report) {}

  Exchange& exchange() { return exchange_; }
  bool is_first() const { return exchange_.rank() == 0; }

  // `check` returns what is wrong on this rank, or nothing; what it raises is wrong, too. The row
  // has the first rank's problem, else what rank 0's `found` returns. Returns whether all is well,
  // on rank 0; elsewhere true.
  bool check(const std::string& what, const std::function<std::string()>& check,
             const std::function<std::string()>& found);
  // Rank 0's verdict; elsewhere the arguments do not count.
  void judge(const std::string& what, const Verdict& verdict,
             const std::map<std::string, double>& numbers = {});
  // The same reason on all ranks.
  void not_run(const std::string& what, const std::string& reason);
  // What `measure` returns on each rank, by rank, on rank 0. Empty elsewhere; and where it raised
  // on a rank, which then is a row.
  std::vector<std::vector<double>> gather(const std::string& what,
                                          const std::function<std::vector<double>()>& measure);

 private:
  void add(const std::string& what, Result result, const std::string& found,
           const std::map<std::string, double>& numbers = {});

  const std::string name_;
  Exchange& exchange_;
  Report& report_;
};

// What `act` raised, as one sentence; empty: nothing. Lets errors through that say that a rank is
// lost.
std::string problem_of(const std::function<void()>& act);

}  // namespace meshrun::verify
