#include "jobs/verify/report.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <regex>

namespace meshrun::verify {
namespace {

using nlohmann::ordered_json;

constexpr size_t kStageWidth = 12;
constexpr size_t kWhatWidth = 40;
constexpr size_t kResultWidth = 8;

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string line(const std::string& result, const std::string& stage, const std::string& what,
                 const std::string& found) {
  std::string text = padded(result, kResultWidth) + " " + padded(stage, kStageWidth) + " " +
                     padded(what, kWhatWidth) + " " + found;
  // Nothing may look like a second row.
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

const char* in_file(Result result) {
  switch (result) {
    case Result::kWrong:
      return "wrong";
    case Result::kNotRun:
      return "not_run";
    default:
      return to_words(result);
  }
}

Result of_file(const std::string& word) {
  for (const Result result : {Result::kWarning, Result::kWrong, Result::kNotRun}) {
    if (word == in_file(result)) return result;
  }
  return Result::kOk;
}

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool is_of_label(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; }

// Behind ".site.edu", where it follows a host's name that ends at `end`.
size_t end_of_domain(const std::string& text, size_t end) {
  while (end + 1 < text.size() && text[end] == '.' && is_of_label(text[end + 1])) {
    ++end;
    while (end < text.size() && is_of_label(text[end])) ++end;
  }
  return end;
}

// Before "gpu7.", where it precedes a domain that begins at `begin`.
size_t begin_of_host(const std::string& text, size_t begin) {
  while (begin >= 2 && text[begin - 1] == '.' && is_of_label(text[begin - 2])) {
    --begin;
    while (begin > 0 && is_of_label(text[begin - 1])) --begin;
  }
  return begin;
}

// "fe80::1%eth0" becomes <address>; "std::string" and "12:30:45" are none.
std::string without_ipv6(const std::string& text) {
  static const std::regex kPerhaps(R"([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)");
  std::string out;
  auto from = text.begin();
  for (auto at = std::sregex_iterator(text.begin(), text.end(), kPerhaps);
       at != std::sregex_iterator(); ++at) {
    std::string address = at->str();
    // The end of a sentence or of its part.
    while (address.ends_with('.') || (address.ends_with(':') && !address.ends_with("::"))) {
      address.pop_back();
    }
    const auto begin = text.begin() + at->position();
    auto end = begin + static_cast<std::ptrdiff_t>(address.size());
    unsigned char bytes[sizeof(in6_addr)];
    if ((begin != text.begin() && is_of_word(*(begin - 1))) ||
        (end != text.end() && is_of_word(*end)) ||
        ::inet_pton(AF_INET6, address.c_str(), bytes) != 1) {
      continue;
    }
    if (end != text.end() && *end == '%') {
      end = std::find_if_not(end + 1, text.end(), is_of_word);
    }
    out.append(from, begin);
    out += "<address>";
    from = end;
  }
  return out.append(from, text.end());
}

std::string first_wrong_of(const std::vector<Row>& rows) {
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [](const Row& r) { return r.result == Result::kWrong; });
  return row == rows.end() ? "" : row->stage + ", " + row->what + ": " + row->found;
}

}  // namespace

const char* to_words(Result result) {
  switch (result) {
    case Result::kOk:
      return "ok";
    case Result::kWarning:
      return "warning";
    case Result::kWrong:
      return "WRONG";
    case Result::kNotRun:
      return "not run";
  }
  return "";
}

std::string line_of(const Row& row) {
  return line(to_words(row.result), row.stage, row.what, row.found);
}

std::string heading() { return line("result", "stage", "what", "found"); }

std::string without_names(std::string text, const Replacements& replacements) {
  Replacements longest_first = replacements;
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  for (const auto& [name, replacement] : longest_first) {
    if (name.empty()) continue;
    const bool is_path = name.find('/') != std::string::npos;
    size_t at = 0;
    while ((at = text.find(name, at)) != std::string::npos) {
      size_t begin = at;
      size_t end = at + name.size();
      const bool is_whole =
          (begin == 0 || !is_of_word(text[begin - 1]) || !is_of_word(name.front())) &&
          (end == text.size() || !is_of_word(text[end]));
      if (is_whole && !is_path) {
        end = end_of_domain(text, end);
        if (name.find('.') != std::string::npos) begin = begin_of_host(text, begin);
      }
      if (is_whole) text.replace(begin, end - begin, replacement);
      at = is_whole ? begin + replacement.size() : at + 1;
    }
  }
  static const std::regex kAddress(R"(\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b)");
  return std::regex_replace(without_ipv6(text), kAddress, "<address>");
}

Report::Report(std::string job, std::function<void(const std::string& line)> added)
    : job_(std::move(job)), added_(std::move(added)) {}

void Report::add(const Row& row) {
  {
    const MutexLock lock(mutex_);
    rows_.push_back(row);
  }
  added_(line_of(row));
}

bool Report::take_up(const std::string& file) {
  const auto former = ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!former.is_object() || job_.empty() || former.value("job", "") != job_) return false;
  const MutexLock lock(mutex_);
  for (const char* name : {"topology", "versions"}) {
    if (former.contains(name)) facts_[name] = former.at(name);
  }
  for (const auto& row : former.at("rows")) {
    rows_.push_back({row.at("stage"), row.at("what"), of_file(row.at("result")), row.at("found"),
                     row.at("numbers")});
  }
  return true;
}

void Report::set(const std::string& name, ordered_json value) {
  const MutexLock lock(mutex_);
  facts_[name] = std::move(value);
}

void Report::replace(const std::string& text, const std::string& replacement) {
  const MutexLock lock(mutex_);
  replacements_.emplace_back(text, replacement);
}

bool Report::is_wrong(const std::string& stage) const {
  const MutexLock lock(mutex_);
  return std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
    return row.stage == stage && row.result == Result::kWrong;
  });
}

std::string Report::first_wrong() const {
  const MutexLock lock(mutex_);
  return first_wrong_of(rows_);
}

std::string Report::last_stage() const {
  const MutexLock lock(mutex_);
  return rows_.empty() ? "" : rows_.back().stage;
}

std::string Report::counts() const {
  const MutexLock lock(mutex_);
  std::string text;
  for (const Result result : {Result::kOk, Result::kWarning, Result::kWrong, Result::kNotRun}) {
    const auto count = std::count_if(rows_.begin(), rows_.end(),
                                     [&](const Row& row) { return row.result == result; });
    const char* const word = result == Result::kWrong ? "wrong" : to_words(result);
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + word;
    if (result == Result::kWarning && count != 1) text += "s";
  }
  return text;
}

std::string Report::file(std::chrono::duration<double> took, bool is_finished) const {
  const MutexLock lock(mutex_);
  const auto clean = [&](const std::string& text) { return without_names(text, replacements_); };
  const std::string wrong = first_wrong_of(rows_);
  ordered_json out = {{"format", 1},
                      {"job", job_},
                      {"finished", is_finished},
                      {"ok", is_finished && wrong.empty()},
                      {"first_wrong", wrong.empty() ? ordered_json() : ordered_json(clean(wrong))},
                      {"seconds", took.count()}};
  out.update(facts_);
  out["rows"] = ordered_json::array();
  for (const Row& row : rows_) {
    out["rows"].push_back({{"stage", row.stage},
                           {"what", clean(row.what)},
                           {"result", in_file(row.result)},
                           {"found", clean(row.found)},
                           {"numbers", row.numbers}});
  }
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace meshrun::verify
