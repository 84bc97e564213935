#include "coordinator/services/refused_calls.h"

#include <utility>

#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

constexpr size_t kMostMethodBytes = 256;

}  // namespace

void RefusedCalls::OnRefused(const v1::Caller& caller, std::string_view method,
                             const absl::Status& why) {
  if (absl::IsResourceExhausted(why) && !caller.nodes().empty()) return;
  MutexLock lock(mu_);
  if (loop_ == nullptr) return;
  RefusalLimit& limit = absl::IsResourceExhausted(why) ? too_many_ : limit_;
  const auto not_recorded = limit.Admit(caller.user(), clock_.SteadyNow());
  if (!not_recorded.has_value()) return;
  v1::StateEvent event;
  *event.mutable_caller() = caller;
  v1::OutsideCall& refused = *event.mutable_outside_call();
  // The path is whatever the caller has sent.
  refused.set_method(
      std::string(Utf8Prefix(ReplaceBytes(method.substr(0, kMostMethodBytes)), kMostMethodBytes)));
  refused.set_code(static_cast<int>(why.code()));
  // It quotes the path.
  refused.set_message(ReplaceBytes(std::string(why.message())));
  refused.set_not_recorded(*not_recorded);
  loop_->PostEnd(std::move(event));
}

void RefusedCalls::Stop() {
  MutexLock lock(mu_);
  loop_ = nullptr;
}

}  // namespace meshrun::coordinator
