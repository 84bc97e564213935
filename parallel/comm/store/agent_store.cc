#include "parallel/comm/store/agent_store.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "c10/util/Exception.h"
#include "fmt/format.h"

namespace meshrun {
namespace {

using std::chrono::milliseconds;

// c10d's zero means "no timeout"; every wait of ours has a deadline.
constexpr milliseconds kLongest = std::chrono::hours(24);

milliseconds deadline_for(milliseconds timeout) {
  return timeout > milliseconds(0) ? timeout : kLongest;
}

void check_status(const absl::Status& status, std::string_view operation) {
  if (status.ok()) return;
  const std::string text = fmt::format("store {}: {}", operation, status.ToString());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kFailedPrecondition:
      throw c10::DistNetworkError(text);
    default:
      throw c10::DistStoreError(text);
  }
}

template <typename T>
T value_of(absl::StatusOr<T> result, std::string_view operation) {
  check_status(result.status(), operation);
  return *std::move(result);
}

std::string to_text(const std::vector<uint8_t>& bytes) {
  return std::string(bytes.begin(), bytes.end());
}
std::vector<uint8_t> to_bytes(const std::string& text) {
  return std::vector<uint8_t>(text.begin(), text.end());
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool is_unique_id_key(const std::string& key) {
  const std::string_view view(key);
  const size_t slash = view.rfind('/');
  if (slash == std::string_view::npos) return false;
  const std::string_view prefix = view.substr(0, slash);
  const std::string_view name = view.substr(slash + 1);
  const std::string ending = std::string("/") + kNcclPrefix;
  const bool is_below =
      prefix == kNcclPrefix ||
      (prefix.size() >= ending.size() && prefix.substr(prefix.size() - ending.size()) == ending);
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos) return is_below && is_number(name);
  const std::string_view left = name.substr(0, colon);
  return is_below && (is_number(left) || left == "UniqueNCCLID") &&
         is_number(name.substr(colon + 1));
}

AgentStore::AgentStore(std::shared_ptr<agent::Agent> agent, milliseconds timeout)
    : c10d::Store(timeout), agent_(std::move(agent)) {}

c10::intrusive_ptr<c10d::Store> AgentStore::clone() {
  return c10::make_intrusive<AgentStore>(agent_, timeout_);
}

void AgentStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  const std::string text = to_text(value);
  check_status(is_unique_id_key(key) ? agent_->PublishUniqueId(key, text) : agent_->Set(key, text),
               fmt::format("set(\"{}\")", key));
}

std::vector<uint8_t> AgentStore::compareSet(const std::string& key,
                                            const std::vector<uint8_t>& expected,
                                            const std::vector<uint8_t>& desired) {
  return to_bytes(value_of(agent_->CompareSet(key, to_text(expected), to_text(desired)),
                           fmt::format("compareSet(\"{}\")", key)));
}

std::vector<uint8_t> AgentStore::get(const std::string& key) {
  const milliseconds timeout = deadline_for(timeout_);
  return to_bytes(value_of(
      is_unique_id_key(key) ? agent_->AwaitUniqueId(key, timeout) : agent_->Get(key, timeout),
      fmt::format("get(\"{}\") (at most {} ms)", key, timeout.count())));
}

int64_t AgentStore::add(const std::string& key, int64_t value) {
  return value_of(agent_->Add(key, value), fmt::format("add(\"{}\", {})", key, value));
}

bool AgentStore::deleteKey(const std::string& key) {
  // The exchange is one-shot and ends with the generation; c10d's wish to forget an id is met by
  // that.
  if (is_unique_id_key(key)) return false;
  return value_of(agent_->Delete(key), fmt::format("deleteKey(\"{}\")", key));
}

bool AgentStore::check(const std::vector<std::string>& keys) {
  return value_of(agent_->Check(keys), fmt::format("check of {} keys", keys.size()));
}

int64_t AgentStore::getNumKeys() { return value_of(agent_->CountKeys(), "getNumKeys()"); }

void AgentStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void AgentStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  const milliseconds bounded = deadline_for(timeout);
  check_status(agent_->Wait(keys, bounded),
               fmt::format("wait for {} keys (at most {} ms)", keys.size(), bounded.count()));
}

void AgentStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  check_status(agent_->Append(key, to_text(value)), fmt::format("append(\"{}\")", key));
}

std::vector<std::vector<uint8_t>> AgentStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  values.reserve(keys.size());
  if (std::any_of(keys.begin(), keys.end(), is_unique_id_key)) {
    for (const std::string& key : keys) values.push_back(get(key));
    return values;
  }
  for (const std::string& value : value_of(agent_->MultiGet(keys, deadline_for(timeout_), stop_),
                                           fmt::format("multiGet of {} keys", keys.size()))) {
    values.push_back(to_bytes(value));
  }
  return values;
}

void AgentStore::multiSet(const std::vector<std::string>& keys,
                          const std::vector<std::vector<uint8_t>>& values) {
  if (keys.size() != values.size()) {
    throw c10::ValueError(
        fmt::format("multiSet got {} keys but {} values", keys.size(), values.size()));
  }
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const std::vector<uint8_t>& value : values) texts.push_back(to_text(value));
  check_status(agent_->MultiSet(keys, texts), fmt::format("multiSet of {} keys", keys.size()));
}

}  // namespace meshrun
