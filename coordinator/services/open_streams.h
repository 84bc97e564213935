// How many streams of a kind each holder of a certificate has open: the coordinator keeps state for
// each, and writes to all.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

// Thread-safe; outlives its places.
class OpenStreams {
 public:
  // `what`: as errors call them.
  OpenStreams(size_t most_of_one, std::string what) : most_(most_of_one), what_(std::move(what)) {}

  // A stream's; free again when it is destroyed.
  class Place {
   public:
    Place() = default;
    Place(OpenStreams* streams, std::string user) : streams_(streams), user_(std::move(user)) {}
    Place(Place&& other) noexcept
        : streams_(std::exchange(other.streams_, nullptr)), user_(std::move(other.user_)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(streams_, other.streams_);
      std::swap(user_, other.user_);
      return *this;
    }
    ~Place() {
      if (streams_ != nullptr) streams_->Close(user_);
    }

   private:
    OpenStreams* streams_ = nullptr;
    std::string user_;
  };

  // RESOURCE_EXHAUSTED (TryAgainLater): `user`, as CallGate names holders, has as many as one may.
  absl::StatusOr<Place> Open(const std::string& user);

 private:
  void Close(const std::string& user);

  const size_t most_;
  const std::string what_;
  Mutex mu_;
  std::map<std::string, size_t> by_user_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
