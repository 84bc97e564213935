#include "parallel/checkpoint/together.h"

#include <exception>
#include <stdexcept>
#include <string>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/patience.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/status_errors.h"

namespace meshrun::detail {
namespace {

// The first letter of a problem on its way.
constexpr char kDamaged = 'd';
constexpr char kOther = 'o';

}  // namespace

void read_together(c10d::ProcessGroup& group, c10::Device device,
                   const std::function<void()>& read) {
  std::string problem;
  run_patiently(group, device, [&] {
    char letter = kOther;
    const std::string raised = raised_by([&] {
      try {
        read();
      } catch (const DamagedCheckpoint&) {
        letter = kDamaged;
        throw;
      }
    });
    if (!raised.empty()) problem = letter + raised;
  });
  problem = common_problem(group, device, problem);
  if (problem.empty()) return;
  if (problem[0] == kDamaged) throw DamagedCheckpoint(problem.substr(1));
  throw std::runtime_error(problem.substr(1));
}

void do_together(c10d::ProcessGroup& group, c10::Device device, const std::function<void()>& work) {
  std::exception_ptr own;
  const std::string raised = raised_by([&] {
    try {
      work();
    } catch (...) {
      own = std::current_exception();
      throw;
    }
  });
  const std::string problem = group.getSize() == 1 ? raised : common_problem(group, device, raised);
  if (own) std::rethrow_exception(own);
  if (!problem.empty()) throw CheckpointFileError(problem);
}

}  // namespace meshrun::detail
