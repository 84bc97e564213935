// The C functions on several ranks, which meet through functions of the caller's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/c_api/meshrun.h"
#include "tests/parallel/c_api/script_file.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using testing::StartsWith;

// Ranks that wait for each other in vain are not waited for.
constexpr std::chrono::minutes kDeadline(1);

int number(const char* name) { return std::atoi(std::getenv(name)); }

std::string text() { return meshrun_last_error(); }

// In place of MPI: a store of its own, whose keys count the calls.
struct OtherLibrary {
  c10::intrusive_ptr<c10d::TCPStore> store;
  int rank = number("RANK");
  int size = number("WORLD_SIZE");
  int calls = 0;
  bool fails = false;

  OtherLibrary() {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(number("MASTER_PORT"));
    options.isServer = rank == 0;
    options.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  // Rank 0, which has the store, is the last to leave.
  ~OtherLibrary() {
    for (int of = 1; of < size && rank == 0; ++of) store->get("left/" + std::to_string(of));
    if (rank != 0) store->set("left/" + std::to_string(rank), std::vector<uint8_t>{1});
  }
  OtherLibrary(const OtherLibrary&) = delete;
  OtherLibrary& operator=(const OtherLibrary&) = delete;

  std::string key(int of) const { return std::to_string(calls) + "/" + std::to_string(of); }

  static int gather(void* context, const void* own, void* all, size_t bytes, char* error,
                    size_t error_bytes) {
    auto& self = *static_cast<OtherLibrary*>(context);
    if (self.fails) {
      std::strncpy(error, "the network is down", error_bytes);
      return 1;
    }
    ++self.calls;
    const auto* const begin = static_cast<const uint8_t*>(own);
    self.store->set(self.key(self.rank), std::vector<uint8_t>(begin, begin + bytes));
    for (int of = 0; of < self.size; ++of) {
      const std::vector<uint8_t> said = self.store->get(self.key(of));
      std::memcpy(static_cast<char*>(all) + static_cast<size_t>(of) * bytes, said.data(), bytes);
    }
    return 0;
  }

  static int broadcast(void* context, void* data, size_t bytes, char* error, size_t error_bytes) {
    auto& self = *static_cast<OtherLibrary*>(context);
    std::vector<char> all(bytes * static_cast<size_t>(self.size));
    const int code = gather(context, data, all.data(), bytes, error, error_bytes);
    std::memcpy(data, all.data(), bytes);
    return code;
  }

  meshrun_bootstrap bootstrap() {
    return {"a library", rank, size, rank, size, 0, this, broadcast, gather};
  }
};

// A world of this rank alone.
void initialize_alone() {
  const meshrun_bootstrap alone = {
      "alone",
      0,
      1,
      0,
      1,
      0,
      nullptr,
      [](void*, void*, size_t, char*, size_t) { return 0; },
      [](void*, const void* own, void* all, size_t bytes, char*, size_t) {
        std::memcpy(all, own, bytes);
        return 0;
      }};
  ASSERT_EQ(meshrun_initialize_with(&alone), MESHRUN_OK) << text();
}

meshrun_array array_of(std::vector<float>& values, int64_t rows, int64_t columns) {
  meshrun_array array{};
  array.data = values.data();
  array.dtype = MESHRUN_FLOAT32;
  array.dims = 2;
  array.shape[0] = rows;
  array.shape[1] = columns;
  return array;
}

// Gradients that were not averaged are not stepped.
const bool kUnused = register_rank_function("unused", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
  const std::string path = testing::TempDir() + "/unused-" + std::to_string(library.rank) + ".pt";
  write_unused_script(path);
  for (const bool looked_for : {false, true}) {
    meshrun_model* model = nullptr;
    ASSERT_EQ(meshrun_model_load_script(path.c_str(), &model), MESHRUN_OK) << text();
    const char* const options = looked_for ? R"({"find_unused_parameters": true})" : "";
    ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 0.1, options), MESHRUN_OK) << text();
    // y = w x with w = 1, and 0 is wanted: the gradient is the mean of 2 x x.
    const float own = library.rank == 0 ? 1 : 2;
    std::vector<float> x = {own}, y = {0}, result(1);
    const meshrun_array input = array_of(x, 1, 1), target = array_of(y, 1, 1);
    for (int step = 0; step < 2; ++step) {
      const int code = meshrun_train_step(model, &input, 1, &target, 1, nullptr);
      EXPECT_EQ(code, looked_for ? MESHRUN_OK : MESHRUN_MODEL) << text();
      if (!looked_for && step == 0) {
        EXPECT_THAT(text(), HasSubstr("set find_unused_parameters"));
      }
    }
    const meshrun_array output = array_of(result, 1, 1);
    ASSERT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
    EXPECT_FLOAT_EQ(result[0], own * (looked_for ? 0.25F : 1.0F));
    EXPECT_EQ(meshrun_model_destroy(model), MESHRUN_OK);
  }
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
});

TEST(CApiRanksTest, AParameterWithoutAGradientStopsTheStepOfAllRanks) {
  expect_success(run_ranks("unused", env_ranks(2), kDeadline));
}

// What `ranks` together would do alone: the gradient is the mean over all samples.
const bool kTrains = register_rank_function("trains", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
  int32_t rank = -1, size = -1;
  ASSERT_EQ(meshrun_rank(&rank), MESHRUN_OK);
  ASSERT_EQ(meshrun_world_size(&size), MESHRUN_OK);
  EXPECT_EQ(rank, library.rank);
  EXPECT_EQ(size, 3);
  const std::string path = testing::TempDir() + "/ranks-" + std::to_string(rank) + ".pt";
  for (const bool buffer : {false, true}) {
    SCOPED_TRACE(buffer);
    write_script(path, /*two=*/false, buffer);
    meshrun_model* model = nullptr;
    ASSERT_EQ(meshrun_model_load_script(path.c_str(), &model), MESHRUN_OK) << text();
    ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 0.5, ""), MESHRUN_OK) << text();
    // Wanted is 3 less than the model says on rank 0, 6 on rank 1, 9 on rank 2: gradient 2 * 6.
    std::vector<float> x = {0, 0}, y = {3.0F - 3 * static_cast<float>(rank + 1)};
    const meshrun_array input = array_of(x, 1, 2), target = array_of(y, 1, 1);
    double loss = 0;
    ASSERT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &loss), MESHRUN_OK) << text();
    EXPECT_DOUBLE_EQ(loss, (9 + 36 + 81) / 3.0);
    std::vector<float> result(1);
    const meshrun_array output = array_of(result, 1, 1);
    ASSERT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
    EXPECT_FLOAT_EQ(result[0], 3 - 6);

    // One rank's mistake is everybody's error, and the next step is as if it had not been.
    std::vector<float> wide(3);
    const meshrun_array wrong = array_of(wide, 1, 3);
    EXPECT_EQ(meshrun_train_step(model, &input, 1, rank == 1 ? &wrong : &target, 1, &loss),
              MESHRUN_INVALID_ARGUMENT);
    EXPECT_THAT(text(), AllOf(HasSubstr("[1, 3]"), HasSubstr("[1, 1]")));
    if (rank != 1) {
      EXPECT_THAT(text(), StartsWith("rank 1: "));
    }
    EXPECT_EQ(meshrun_train_step(model, rank == 2 ? nullptr : &input, 1, &target, 1, &loss),
              MESHRUN_INVALID_ARGUMENT);
    EXPECT_THAT(text(), HasSubstr("inputs is a null pointer"));
    EXPECT_EQ(meshrun_model_save(model, rank == 0 ? nullptr : "/nowhere", 1),
              MESHRUN_INVALID_ARGUMENT);
    ASSERT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &loss), MESHRUN_OK) << text();
    EXPECT_EQ(meshrun_model_destroy(model), MESHRUN_OK);
  }
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
});

TEST(CApiRanksTest, GradientsAreTheMeanAndErrorsAreShared) {
  expect_success(run_ranks("trains", env_ranks(3)));
}

meshrun_model* make_script(bool two, bool buffer) {
  const std::string path = testing::TempDir() + "/handles-" + std::getenv("RANK") + ".pt";
  write_script(path, two, buffer);
  meshrun_model* model = nullptr;
  EXPECT_EQ(meshrun_model_load_script(path.c_str(), &model), MESHRUN_OK) << text();
  return model;
}

float bias_of(meshrun_model* model, int32_t outputs = 1) {
  std::vector<float> x(2), y(1), z(1);
  const meshrun_array input = array_of(x, 1, 2);
  const meshrun_array both[] = {array_of(y, 1, 1), array_of(z, 1, 1)};
  EXPECT_EQ(meshrun_infer(model, &input, 1, both, outputs), MESHRUN_OK) << text();
  return y[0];
}

// LibTorch's reducer has collectives of its own in the second forward call.
const bool kHasABadHandle = register_rank_function("has a bad handle", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
  for (const bool buffer : {false, true}) {
    SCOPED_TRACE(buffer);
    meshrun_model* const model = make_script(/*two=*/false, buffer);
    meshrun_model* const untrained = make_script(/*two=*/false, buffer);
    meshrun_model* const destroyed = make_script(/*two=*/false, buffer);
    ASSERT_EQ(meshrun_model_destroy(destroyed), MESHRUN_OK);
    ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 0.5, ""), MESHRUN_OK) << text();
    std::vector<float> x = {0, 0}, y = {1};
    const meshrun_array input = array_of(x, 1, 2), target = array_of(y, 1, 1);
    const auto step = [&](meshrun_model* own, const meshrun_array* own_input) {
      return meshrun_train_step(own, own_input, 1, &target, 1, nullptr);
    };
    for (int good = 0; good < 3; ++good) {
      SCOPED_TRACE(good);
      const bool is_wrong = library.rank == 1;
      EXPECT_EQ(step(is_wrong ? nullptr : model, &input), MESHRUN_INVALID_ARGUMENT);
      EXPECT_THAT(text(), HasSubstr("model is a null pointer"));
      EXPECT_EQ(step(is_wrong ? destroyed : model, &input), MESHRUN_INVALID_ARGUMENT);
      EXPECT_THAT(text(), HasSubstr("destroyed before"));
      EXPECT_EQ(step(is_wrong ? untrained : model, &input), MESHRUN_INVALID_STATE);
      EXPECT_THAT(text(), HasSubstr("meshrun_model_set_training()"));
      EXPECT_EQ(step(model, is_wrong ? nullptr : &input), MESHRUN_INVALID_ARGUMENT);
      EXPECT_THAT(text(), HasSubstr("inputs is a null pointer"));
      if (!is_wrong) {
        EXPECT_THAT(text(), StartsWith("rank 1: "));
      }
      // 3 goes to 1, and stays there.
      ASSERT_EQ(step(model, &input), MESHRUN_OK) << text();
      EXPECT_FLOAT_EQ(bias_of(model), 1);
    }
  }
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
});

TEST(CApiRanksTest, ABadHandleOfOneRankIsEverybodysErrorAndAllGoOn) {
  expect_success(run_ranks("has a bad handle", env_ranks(2), kDeadline));
}

const bool kDiffers = register_rank_function("differs", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
  const bool is_odd = library.rank == 1;
  meshrun_model* const model = make_script(/*two=*/false, /*buffer=*/false);
  const auto set = [&](const char* loss, const char* optimizer, double rate, const char* options) {
    const int code = meshrun_model_set_training(model, loss, optimizer, rate, options);
    EXPECT_EQ(code, MESHRUN_INVALID_ARGUMENT) << text();
    return text();
  };
  EXPECT_THAT(set(is_odd ? "l1" : "mse", "sgd", 0.5, ""), AllOf(HasSubstr("l1"), HasSubstr("mse")));
  EXPECT_THAT(set("mse", is_odd ? "adamw" : "adam", 0.5, ""),
              AllOf(HasSubstr("Adam "), HasSubstr("AdamW")));
  EXPECT_THAT(set("mse", "sgd", is_odd ? 0.25 : 0.5, ""),
              AllOf(HasSubstr("lr 0.25"), HasSubstr("lr 0.5")));
  EXPECT_THAT(set("mse", "adam", 0.5, is_odd ? R"({"weight_decay": 0.125})" : ""),
              AllOf(HasSubstr("weight_decay 0.125"), HasSubstr("weight_decay 0,")));
  EXPECT_THAT(set("mse", "sgd", 0.5, is_odd ? R"({"clip_grad_norm": 2})" : nullptr),
              AllOf(HasSubstr("clip_grad_norm 2"), HasSubstr("clip_grad_norm 0")));
  // The same options in other words.
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 0.5,
                                       is_odd ? R"({"momentum": 0, "clip_grad_norm": 0})" : ""),
            MESHRUN_OK)
      << text();

  std::vector<float> x = {0, 0}, y = {1};
  const meshrun_array input = array_of(x, 1, 2), target = array_of(y, 1, 1);
  const auto step = [&](meshrun_model* own) {
    return meshrun_train_step(own, &input, 1, &target, 1, nullptr);
  };
  ASSERT_EQ(step(model), MESHRUN_OK) << text();
  for (int good = 0; good < 2; ++good) {
    ASSERT_EQ(meshrun_model_set_learning_rate(model, is_odd ? 0.1 : 0.2), MESHRUN_OK);
    EXPECT_EQ(step(model), MESHRUN_INVALID_ARGUMENT);
    EXPECT_THAT(text(), AllOf(HasSubstr("learning rate 0.1"), HasSubstr("learning rate 0.2")));
    EXPECT_FLOAT_EQ(bias_of(model), 1);
    ASSERT_EQ(meshrun_model_set_learning_rate(model, 0.25), MESHRUN_OK);
    y[0] = bias_of(model) - 2;
    ASSERT_EQ(step(model), MESHRUN_OK) << text();
    EXPECT_FLOAT_EQ(bias_of(model), y[0] + 1);
    y[0] = 1;
    ASSERT_EQ(meshrun_model_set_learning_rate(model, 0.5), MESHRUN_OK);
    ASSERT_EQ(step(model), MESHRUN_OK) << text();
  }

  // Models of equal shapes are not each other's.
  meshrun_model* const other = make_script(/*two=*/false, /*buffer=*/false);
  ASSERT_EQ(meshrun_model_set_training(other, "mse", "sgd", 0.5, ""), MESHRUN_OK) << text();
  EXPECT_EQ(step(is_odd ? other : model), MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), AllOf(HasSubstr("model 1"), HasSubstr("model 2")));
  ASSERT_EQ(step(other), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
});

TEST(CApiRanksTest, RanksTrainAlikeOrNotAtAll) {
  expect_success(run_ranks("differs", env_ranks(2), kDeadline));
}

// Samples of rank r of 3 are r of the 3; rank 0 has none.
const bool kHasUnevenShares = register_rank_function("has uneven shares", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
  const int rank = library.rank;
  struct Case {
    const char* loss;
    double value, slope;  // at outputs of 3, for wanted 2.5, 1 and 6
  };
  for (const Case& one :
       {Case{"mse", (0.25 + 4 + 9) / 3, 2 * (0.5 + 2 - 3) / 3}, Case{"l1", 5.5 / 3, 1.0 / 3},
        Case{"smooth_l1", (0.125 + 1.5 + 2.5) / 3, (0.5 + 1 - 1) / 3}}) {
    for (const bool two : {false, true}) {
      for (const bool buffer : {false, true}) {
        SCOPED_TRACE(std::string(one.loss) + (two ? ", two outputs" : "") +
                     (buffer ? ", a buffer" : ""));
        meshrun_model* const model = make_script(two, buffer);
        ASSERT_EQ(meshrun_model_set_training(model, one.loss, "sgd", 0.5, ""), MESHRUN_OK)
            << text();
        std::vector<float> x(4), y, second(2, 6);  // the second output is 6, and wanted
        if (rank == 1) y = {2.5};
        if (rank == 2) y = {1, 6};
        const meshrun_array input = array_of(x, rank, 2);
        const std::array targets = {array_of(y, rank, 1), array_of(second, rank, 1)};
        double loss = 0;
        ASSERT_EQ(meshrun_train_step(model, &input, 1, targets.data(), two ? 2 : 1, &loss),
                  MESHRUN_OK)
            << text();
        EXPECT_NEAR(loss, one.value, 1e-6);
        EXPECT_NEAR(bias_of(model, two ? 2 : 1), 3 - 0.5 * one.slope, 1e-6);
        // Nobody has a sample.
        const meshrun_array none = array_of(x, 0, 2), no_target = array_of(y, 0, 1);
        const std::array no_targets = {no_target, no_target};
        EXPECT_EQ(meshrun_train_step(model, &none, 1, no_targets.data(), two ? 2 : 1, &loss),
                  MESHRUN_INVALID_ARGUMENT);
        EXPECT_THAT(text(), HasSubstr("empty on all ranks"));
        EXPECT_NEAR(bias_of(model, two ? 2 : 1), 3 - 0.5 * one.slope, 1e-6);
        ASSERT_EQ(meshrun_model_destroy(model), MESHRUN_OK);
      }
    }
  }
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
});

TEST(CApiRanksTest, EverySampleCountsTheSameOnWhicheverRank) {
  expect_success(run_ranks("has uneven shares", env_ranks(3), kDeadline));
}

struct ShippedCase {
  const char* name;
  const char* options;
  std::vector<int64_t> in, out;  // of a sample
  const char* loss = "mse";
};

const std::vector<ShippedCase>& shipped_cases() {
  static const auto& cases = *new std::vector<ShippedCase>{
      {"fully_connected",
       R"({"in_features": 2, "out_features": 1, "layer_size": 8, "num_layers": 1})",
       {2},
       {1}},
      {"fully_connected",
       R"({"in_features": 2, "out_features": 3, "layer_size": 8, "num_layers": 1})",
       {2},
       {},
       "cross_entropy"},
      {"fno",
       R"({"modes": [2, 2], "width": 4, "num_layers": 1, "projection_channels": 4})",
       {1, 8, 8},
       {1, 8, 8}},
      {"afno",
       R"({"inp_shape": [8, 8], "in_channels": 1, "out_channels": 2, "patch_size": [4, 4],
           "embed_dim": 8, "depth": 1, "num_blocks": 2})",
       {1, 8, 8},
       {2, 8, 8}},
      {"unet",
       R"({"in_channels": 2, "out_channels": 1, "base_channels": 4, "depth": 1})",
       {2, 8, 8},
       {1, 8, 8}},
      {"vision_transformer",
       R"({"image_size": [8, 8], "in_channels": 1, "out_channels": 1, "patch_size": [4, 4],
           "embed_dim": 8, "depth": 1, "num_heads": 2})",
       {1, 8, 8},
       {1, 8, 8}}};
  return cases;
}

int64_t numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// Samples `begin` to `end` - 1 of `data`.
meshrun_array samples_of(void* data, int32_t dtype, const std::vector<int64_t>& shape, int begin,
                         int end) {
  meshrun_array array{};
  array.dtype = dtype;
  const int64_t bytes = numel(shape) * (dtype == MESHRUN_INT64 ? 8 : 4);
  if (begin < end) array.data = static_cast<char*>(data) + begin * bytes;
  array.dims = static_cast<int32_t>(shape.size()) + 1;
  array.shape[0] = end - begin;
  std::copy(shape.begin(), shape.end(), array.shape + 1);
  return array;
}

struct Trained {
  std::vector<double> losses;
  std::vector<float> outputs;
};

// Three steps with samples `begin` to `end` - 1 of 3 on this rank.
Trained train_share(const ShippedCase& one, int begin, int end) {
  const bool are_classes = std::string(one.loss) == "cross_entropy";
  const std::vector<int64_t> out = are_classes ? std::vector<int64_t>{3} : one.out;
  std::vector<float> x(static_cast<size_t>(3 * numel(one.in)));
  std::vector<float> y(static_cast<size_t>(3 * numel(out)));
  std::vector<int64_t> classes = {2, 0, 2};
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  for (size_t i = 0; i < y.size(); ++i) y[i] = std::cos(3 * static_cast<float>(i));
  Trained trained;
  meshrun_model* model = nullptr;
  EXPECT_EQ(meshrun_manual_seed(1), MESHRUN_OK);
  EXPECT_EQ(meshrun_model_create(one.name, one.options, &model), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_model_set_training(model, one.loss, "sgd", 0.1, ""), MESHRUN_OK) << text();
  const meshrun_array input = samples_of(x.data(), MESHRUN_FLOAT32, one.in, begin, end);
  const meshrun_array target = are_classes
                                   ? samples_of(classes.data(), MESHRUN_INT64, {}, begin, end)
                                   : samples_of(y.data(), MESHRUN_FLOAT32, one.out, begin, end);
  for (int step = 0; step < 3; ++step) {
    double loss = 0;
    EXPECT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &loss), MESHRUN_OK) << text();
    trained.losses.push_back(loss);
  }
  trained.outputs.resize(y.size());
  const meshrun_array all = samples_of(x.data(), MESHRUN_FLOAT32, one.in, 0, 3);
  const meshrun_array output = samples_of(trained.outputs.data(), MESHRUN_FLOAT32, out, 0, 3);
  EXPECT_EQ(meshrun_infer(model, &all, 1, &output, 1), MESHRUN_OK) << text();
  return trained;
}

const bool kTrainsAsOneRankWould = register_rank_function("trains as one rank would", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
  // Ranks share the cores, and OpenMP's threads wait busily.
  at::set_num_threads(1);
  const std::array begins = {0, 0, 1, 3};
  std::vector<Trained> together;
  for (const ShippedCase& one : shipped_cases()) {
    SCOPED_TRACE(one.name);
    together.push_back(train_share(one, begins[static_cast<size_t>(library.rank)],
                                   begins[static_cast<size_t>(library.rank) + 1]));
  }
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
  initialize_alone();
  for (size_t i = 0; i < together.size(); ++i) {
    SCOPED_TRACE(shipped_cases()[i].name);
    const Trained alone = train_share(shipped_cases()[i], 0, 3);
    EXPECT_THAT(together[i].losses, Pointwise(DoubleNear(1e-5), alone.losses));
    EXPECT_THAT(together[i].outputs, Pointwise(FloatNear(1e-4F), alone.outputs));
  }
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
});

TEST(CApiRanksTest, UnevenSharesTrainEveryShippedNetworkAsOneRankWould) {
  expect_success(run_ranks("trains as one rank would", env_ranks(3), kDeadline));
}

const bool kJoinsTwice = register_rank_function("joins twice", [] {
  OtherLibrary library;
  meshrun_bootstrap bootstrap = library.bootstrap();
  for (int world = 0; world < 2; ++world) {
    ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
    ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
    ASSERT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
  }
  // One rank is in a world already.
  if (library.rank == 1) initialize_alone();
  EXPECT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_ENVIRONMENT);
  EXPECT_THAT(text(),
              AllOf(HasSubstr("rank 1 has a DistributedManager"), HasSubstr("rank 0 has none")));
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
});

TEST(CApiRanksTest, WorldsFollowEachOther) {
  expect_success(run_ranks("joins twice", env_ranks(2)));
}

const bool kIsElsewhere = register_rank_function("is elsewhere", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  initialize_alone();
  EXPECT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_ENVIRONMENT);
  EXPECT_THAT(text(),
              AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 0 of 1"), HasSubstr("cleanup()")));
  int32_t size = 0;
  EXPECT_EQ(meshrun_world_size(&size), MESHRUN_OK);
  EXPECT_EQ(size, 1);
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK);
  // A world of the same size in another order is another world.
  ASSERT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_OK) << text();
  meshrun_bootstrap reversed = bootstrap;
  OtherLibrary* const other = &library;
  reversed.rank = other->rank = 1 - library.rank;
  EXPECT_EQ(meshrun_initialize_with(&reversed), MESHRUN_ENVIRONMENT);
  EXPECT_THAT(text(), AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")));
  other->rank = bootstrap.rank;
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK);
});

TEST(CApiRanksTest, AWorldOfOtherRanksIsRefused) {
  expect_success(run_ranks("is elsewhere", env_ranks(2), kDeadline));
}

const bool kOneRankCannot = register_rank_function("one rank cannot", [] {
  OtherLibrary library;
  const meshrun_bootstrap bootstrap = library.bootstrap();
  EXPECT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_ENVIRONMENT);
  EXPECT_THAT(text(), HasSubstr("MESHRUN_TIMEOUT_SECONDS=\"soon\""));
  if (library.rank == 0) {
    EXPECT_THAT(text(), StartsWith("rank 1 cannot join: "));
  }
  library.fails = true;
  EXPECT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_COMMUNICATION);
  EXPECT_THAT(text(), AllOf(HasSubstr("a library"), HasSubstr("the network is down")));
});

TEST(CApiRanksTest, WhatOneRankCannotAllReport) {
  auto ranks = env_ranks(2);
  ranks[1]["MESHRUN_TIMEOUT_SECONDS"] = "soon";
  expect_success(run_ranks("one rank cannot", ranks));
}

}  // namespace
}  // namespace meshrun
