// c10d's interface to give a group's backend other members, which older versions of LibTorch lack.
//
// c10d says by a macro of its own whether it has the interface. Without it the class compiles, with
// the newest version's names, and nothing of c10d calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "c10/util/Exception.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace meshrun::libtorch {

#ifdef C10D_BACKEND_HAS_RECONFIGURE

using c10d::ReconfigureHandle;
using c10d::ReconfigureOptions;

// A backend whose rank and size change.
class BackendOfManyWorlds : public c10d::Backend {
 protected:
  using Backend::Backend;

  void set_place(int rank, int size) {
    rank_ = rank;
    size_ = size;
  }
};

#else

using ReconfigureHandle = std::string;

struct ReconfigureOptions {
  int64_t uuid = 0;
  std::variant<std::unordered_set<ReconfigureHandle>, std::vector<ReconfigureHandle> > handles;
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  std::unordered_map<std::string, std::string> hints;
};

class BackendOfManyWorlds : public c10d::Backend {
 public:
  virtual bool supportsReconfigure() const = 0;
  virtual ReconfigureHandle get_reconfigure_handle() const = 0;
  virtual c10::intrusive_ptr<c10d::Work> reconfigure(const ReconfigureOptions& options) = 0;

 protected:
  using Backend::Backend;

  void set_place(int, int) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a backend of this LibTorch keeps its rank and size");
  }
};

#endif

}  // namespace meshrun::libtorch
