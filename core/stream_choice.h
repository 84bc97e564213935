// Which output streams of which ranks are meant, as torchrun writes it: "3" for all ranks,
// "0:1,1:3" by local rank, where 1 is stdout, 2 is stderr, 3 is both and 0 is none.
#pragma once

#include <map>
#include <string_view>

#include "absl/status/statusor.h"

namespace meshrun {

class StreamChoice {
 public:
  // None.
  StreamChoice() = default;
  // INVALID_ARGUMENT: what to write instead.
  static absl::StatusOr<StreamChoice> Parse(std::string_view text);
  static StreamChoice All();

  bool Has(int local_rank, bool is_stderr) const;
  bool empty() const;

 private:
  int of_all_ = 0;
  std::map<int, int> of_rank_;
};

}  // namespace meshrun
