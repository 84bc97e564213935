// Where samples of Darcy flow come from: the flags that jobs which learn from them share.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace meshrun::darcy {

struct DataOptions {
  DataOptions();

  // Empty: samples are made, and kept in `cache`.
  std::string data;
  std::string cache;
  std::string medium = "threshold";
  int64_t size = 64;
  int64_t data_seed = 1;
  int64_t train_samples = 1000;
  int64_t test_samples = 200;
};

void add_data_flags(CLI::App& app, DataOptions& options);

}  // namespace meshrun::darcy
