#include "jobs/verify/stage.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "c10/util/Exception.h"
#include "jobs/runtime/words.h"
#include "parallel/base/collective_errors.h"
#include "parallel/elastic/elastic_context.h"

namespace meshrun::verify {

std::string problem_of(const std::function<void()>& act) {
  const auto text_or = [](std::string text) {
    return text.empty() ? std::string("an error without a text") : text;
  };
  try {
    act();
    return "";
  } catch (const PeerLostError&) {
    throw;
  } catch (const PeerLeftError&) {
    throw;
  } catch (const GroupAbortedError&) {
    throw;
  } catch (const ElasticStoppedError&) {
    throw;
  } catch (const c10::Error& error) {
    return text_or(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return text_or(error.what());
  }
}

bool Stage::check(const std::string& what, const std::function<std::string()>& check,
                  const std::function<std::string()>& found) {
  std::string problem;
  const std::string raised = problem_of([&] { problem = check(); });
  if (!raised.empty()) problem = raised;
  const std::vector<std::string> problems = exchange_.gather(problem);
  const auto first = std::find_if(problems.begin(), problems.end(),
                                  [](const std::string& text) { return !text.empty(); });
  if (first == problems.end()) {
    if (exchange_.rank() == 0) add(what, Result::kOk, found());
    return true;
  }
  const auto others = std::count_if(first + 1, problems.end(),
                                    [](const std::string& text) { return !text.empty(); });
  add(what, Result::kWrong,
      "rank " + std::to_string(first - problems.begin()) + ": " + *first +
          (others > 0 ? " (and " + jobs::ranks(static_cast<int>(others)) + " more)" : ""));
  return false;
}

void Stage::judge(const std::string& what, const Verdict& verdict,
                  const std::map<std::string, double>& numbers) {
  add(what, verdict.result, verdict.found, numbers);
}

void Stage::not_run(const std::string& what, const std::string& reason) {
  add(what, Result::kNotRun, reason);
}

std::vector<std::vector<double>> Stage::gather(
    const std::string& what, const std::function<std::vector<double>()>& measure) {
  std::vector<double> own;
  const std::string problem = problem_of([&] { own = measure(); });
  const std::vector<std::string> texts =
      exchange_.gather(nlohmann::json{{"problem", problem}, {"values", own}}.dump());
  std::vector<std::vector<double>> values;
  for (const std::string& text : texts) {
    const auto said = nlohmann::json::parse(text);
    if (const std::string wrong = said.at("problem"); !wrong.empty()) {
      add(what, Result::kWrong, "rank " + std::to_string(values.size()) + ": " + wrong);
      return {};
    }
    values.push_back(said.at("values"));
  }
  return values;
}

void Stage::add(const std::string& what, Result result, const std::string& found,
                const std::map<std::string, double>& numbers) {
  if (exchange_.rank() == 0) report_.add({name_, what, result, found, numbers});
}

}  // namespace meshrun::verify
