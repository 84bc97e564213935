#include "jobs/verify/scratch_directory.h"

#include <filesystem>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

namespace meshrun::verify {
namespace {

void remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace

ScratchDirectory::~ScratchDirectory() { remove(path_); }

void ScratchDirectory::remove_within(std::chrono::milliseconds most) const {
  const auto done = std::make_shared<std::promise<void>>();
  std::thread([done, path = path_] {
    remove(path);
    done->set_value();
  }).detach();
  done->get_future().wait_for(most);
}

}  // namespace meshrun::verify
