#include "agent/totals.h"

#include <utility>

#include "agent/background.h"

namespace meshrun::agent {
namespace {

thread_local int background_scopes = 0;

}  // namespace

InBackground::InBackground() { ++background_scopes; }
InBackground::~InBackground() { --background_scopes; }
bool IsInBackground() { return background_scopes > 0; }

const std::shared_ptr<Totals>& Totals::OfProcess() {
  // Never destroyed: threads may count while the process ends.
  static const auto& totals = *new std::shared_ptr<Totals>(std::make_shared<Totals>());
  return totals;
}

void Totals::CountUntil(SteadyNanos at) {
  // What a reader has counted already is not counted again.
  if (at <= counted_until_) return;
  if (under_way_ > 0) waited_ += at - counted_until_;
  counted_until_ = at;
}

void Totals::BeginWait(SteadyNanos at) {
  const MutexLock lock(mu_);
  CountUntil(at);
  ++under_way_;
}

void Totals::EndWait(SteadyNanos at) {
  const MutexLock lock(mu_);
  CountUntil(at);
  --under_way_;
}

void Totals::SetCollectivesKnown() {
  const MutexLock lock(mu_);
  knows_collectives_ = true;
}

std::optional<SteadyNanos> Totals::Waited(SteadyNanos now) {
  const MutexLock lock(mu_);
  CountUntil(now);
  if (!knows_collectives_) return std::nullopt;
  return waited_;
}

void Totals::AddSent(uint64_t bytes) {
  const MutexLock lock(mu_);
  sent_ += bytes;
}

uint64_t Totals::Sent() {
  const MutexLock lock(mu_);
  return sent_;
}

WaitScope::WaitScope(std::shared_ptr<Totals> totals)
    : totals_(IsInBackground() ? nullptr : std::move(totals)) {
  if (totals_ != nullptr) totals_->BeginWait(Clock::Real().SteadyNow());
}

WaitScope::~WaitScope() {
  if (totals_ != nullptr) totals_->EndWait(Clock::Real().SteadyNow());
}

}  // namespace meshrun::agent
