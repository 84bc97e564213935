// The C functions as a C program calls them.

#include <fenv.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "parallel/c_api/meshrun.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/c_api/script_file.h"
#include "torch/optim/adam.h"

namespace meshrun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::FloatEq;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

constexpr const char* kSmall =
    R"({"in_features": 2, "out_features": 1, "layer_size": 8, "num_layers": 1})";

std::string text() { return meshrun_last_error(); }

template <typename T>
constexpr int32_t dtype_of() {
  return std::is_same_v<T, float> ? MESHRUN_FLOAT32 : MESHRUN_FLOAT64;
}

template <typename T>
meshrun_array array_of(std::vector<T>& values, std::vector<int64_t> shape,
                       int32_t order = MESHRUN_ROW_MAJOR) {
  meshrun_array array{};
  array.data = values.data();
  array.dtype = dtype_of<T>();
  array.order = order;
  array.dims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), array.shape);
  return array;
}

class CApiTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(meshrun_initialize(), MESHRUN_OK) << text(); }
  void TearDown() override {
    for (meshrun_model* const model : models_) EXPECT_EQ(meshrun_model_destroy(model), MESHRUN_OK);
    EXPECT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
  }

  meshrun_model* keep(meshrun_model* model) {
    models_.push_back(model);
    return model;
  }
  meshrun_model* small() {
    meshrun_model* model = nullptr;
    EXPECT_EQ(meshrun_manual_seed(1), MESHRUN_OK);
    EXPECT_EQ(meshrun_model_create("fully_connected", kSmall, &model), MESHRUN_OK) << text();
    return keep(model);
  }
  std::string path(const std::string& name) const {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    const auto directory = std::filesystem::path(testing::TempDir()) / "c_api" / test->name();
    std::filesystem::create_directories(directory);
    return directory / name;
  }
  meshrun_model* script(bool two = false, bool buffer = false) {
    write_script(path("script.pt"), two, buffer);
    meshrun_model* model = nullptr;
    EXPECT_EQ(meshrun_model_load_script(path("script.pt").c_str(), &model), MESHRUN_OK) << text();
    return keep(model);
  }
  meshrun_model* tied_script() {
    write_tied_script(path("tied.pt"));
    meshrun_model* model = nullptr;
    EXPECT_EQ(meshrun_model_load_script(path("tied.pt").c_str(), &model), MESHRUN_OK) << text();
    return keep(model);
  }
  // The weight of a tied script, by its square.
  float tied_weight(meshrun_model* model) {
    std::vector<float> x = {1}, y(1);
    const meshrun_array input = array_of(x, {1, 1}), output = array_of(y, {1, 1});
    EXPECT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
    return std::sqrt(y[0]);
  }
  // Towards 0 at 1: the loss is w to the 4th, its derivative 4 w to the 3rd.
  void step_tied(meshrun_model* model) {
    std::vector<float> x = {1}, wanted = {0};
    const meshrun_array input = array_of(x, {1, 1}), target = array_of(wanted, {1, 1});
    EXPECT_EQ(meshrun_train_step(model, &input, 1, &target, 1, nullptr), MESHRUN_OK) << text();
  }
  std::vector<float> infer(meshrun_model* model, std::vector<float> x, int64_t samples) {
    std::vector<float> y(static_cast<size_t>(samples));
    const meshrun_array input = array_of(x, {samples, 2});
    const meshrun_array output = array_of(y, {samples, 1});
    EXPECT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
    return y;
  }

 private:
  std::vector<meshrun_model*> models_;
};

TEST(CApiWithoutAWorldTest, SaysWhatToCallFirst) {
  int32_t rank = 7;
  EXPECT_EQ(meshrun_rank(&rank), MESHRUN_INVALID_STATE);
  EXPECT_THAT(text(), HasSubstr("call meshrun_initialize()"));
  EXPECT_EQ(rank, 7);
  meshrun_model* model = nullptr;
  EXPECT_EQ(meshrun_model_create("unet", "", &model), MESHRUN_INVALID_STATE);
  EXPECT_EQ(model, nullptr);
  int32_t initialized = 7;
  EXPECT_EQ(meshrun_is_initialized(&initialized), MESHRUN_OK);
  EXPECT_EQ(initialized, 0);
  EXPECT_EQ(meshrun_finalize(), MESHRUN_OK);
  EXPECT_EQ(meshrun_abi_version(), MESHRUN_ABI_VERSION);
}

TEST_F(CApiTest, TellsTheRank) {
  int32_t rank = -1, size = -1, local = -1, local_size = -1, node = -1;
  EXPECT_EQ(meshrun_rank(&rank), MESHRUN_OK);
  EXPECT_EQ(meshrun_world_size(&size), MESHRUN_OK);
  EXPECT_EQ(meshrun_local_rank(&local), MESHRUN_OK);
  EXPECT_EQ(meshrun_local_world_size(&local_size), MESHRUN_OK);
  EXPECT_EQ(meshrun_node_rank(&node), MESHRUN_OK);
  EXPECT_THAT((std::array{rank, size, local, local_size, node}), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_EQ(meshrun_rank(nullptr), MESHRUN_INVALID_ARGUMENT);
  EXPECT_EQ(text(), "the argument rank is a null pointer");
}

TEST_F(CApiTest, NamesWhatANetworkIsMadeOf) {
  meshrun_model* model = nullptr;
  const auto refused = [&](const char* name, const char* options) {
    EXPECT_EQ(meshrun_model_create(name, options, &model), MESHRUN_INVALID_ARGUMENT);
    return text();
  };
  EXPECT_THAT(refused("resnet", ""), AllOf(HasSubstr("resnet"), HasSubstr("fully_connected")));
  EXPECT_THAT(refused("fully_connected", R"({"width": 3})"),
              AllOf(HasSubstr("no option width"), HasSubstr("layer_size")));
  EXPECT_THAT(refused("fully_connected", R"({"layer_size": "wide"})"),
              AllOf(HasSubstr("layer_size"), HasSubstr("\"wide\""), HasSubstr("an integer")));
  EXPECT_THAT(refused("unet", R"({"in_channels": 1})"), HasSubstr("out_channels"));
  EXPECT_THAT(refused("unet", "in_channels=1"), HasSubstr("in_channels=1"));
  EXPECT_THAT(refused(nullptr, ""), HasSubstr("name"));
  EXPECT_EQ(meshrun_model_create("unet", "", nullptr), MESHRUN_INVALID_ARGUMENT);
  EXPECT_EQ(model, nullptr);
}

TEST_F(CApiTest, EveryShippedNetworkMapsAField) {
  struct Case {
    const char* name;
    const char* options;
    std::vector<int64_t> in, out;
  };
  const std::vector<Case> cases = {
      {"fully_connected", kSmall, {3, 2}, {3, 1}},
      {"fno",
       R"({"modes": [2, 2], "width": 4, "num_layers": 1, "projection_channels": 4})",
       {1, 1, 8, 8},
       {1, 1, 8, 8}},
      {"afno",
       R"({"inp_shape": [8, 8], "in_channels": 1, "out_channels": 2, "patch_size": [4, 4],
           "embed_dim": 8, "depth": 1, "num_blocks": 2})",
       {1, 1, 8, 8},
       {1, 2, 8, 8}},
      {"unet",
       R"({"in_channels": 2, "out_channels": 1, "base_channels": 4, "depth": 1})",
       {1, 2, 8, 8},
       {1, 1, 8, 8}},
      {"vision_transformer",
       R"({"image_size": [8, 8], "in_channels": 1, "out_channels": 1, "patch_size": [4, 4],
           "embed_dim": 8, "depth": 1, "num_heads": 2})",
       {2, 1, 8, 8},
       {2, 1, 8, 8}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    meshrun_model* model = nullptr;
    ASSERT_EQ(meshrun_model_create(one.name, one.options, &model), MESHRUN_OK) << text();
    keep(model);
    std::vector<float> x(256, 0.5F), y(256, NAN);
    const meshrun_array input = array_of(x, one.in), output = array_of(y, one.out);
    EXPECT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
    EXPECT_TRUE(std::isfinite(y[0]));
    int64_t count = 0;
    EXPECT_EQ(meshrun_model_parameter_count(model, &count), MESHRUN_OK);
    EXPECT_GT(count, 0);
  }
}

TEST_F(CApiTest, OrdersOfOneMemoryAreTheSameSamples) {
  meshrun_model* const model = script();
  std::vector<float> rows = {1, 10, 2, 20, 3, 30};     // three samples of two
  std::vector<float> columns = {1, 2, 3, 10, 20, 30};  // the same, feature by feature
  const auto result = [&](const meshrun_array& input) {
    std::vector<float> y(3);
    const meshrun_array output = array_of(y, {3, 1});
    EXPECT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
    return y;
  };
  const std::vector<float> expected = {24, 45, 66};
  EXPECT_EQ(result(array_of(rows, {3, 2})), expected);
  EXPECT_EQ(result(array_of(rows, {2, 3}, MESHRUN_COLUMN_MAJOR)), expected);
  meshrun_array strided = array_of(columns, {3, 2}, MESHRUN_STRIDED);
  strided.strides[0] = 1;
  strided.strides[1] = 3;
  EXPECT_EQ(result(strided), expected);
}

TEST_F(CApiTest, WritesResultsWhereTheArrayLies) {
  meshrun_model* const model = script();
  std::vector<float> x = {1, 10, 2, 20}, y(4, -1);
  const meshrun_array input = array_of(x, {2, 2});
  meshrun_array output = array_of(y, {2, 1}, MESHRUN_STRIDED);
  output.strides[0] = 2;
  EXPECT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
  EXPECT_THAT(y, ElementsAre(24, -1, 45, -1));
}

TEST_F(CApiTest, NamesTheArrayThatDoesNotFit) {
  meshrun_model* const model = script();
  std::vector<float> x(4), y(4);
  std::vector<double> wide(4);
  meshrun_array input = array_of(x, {2, 2}), output = array_of(y, {2, 1});
  const auto refused = [&](const meshrun_array& in, const meshrun_array& out,
                           int code = MESHRUN_INVALID_ARGUMENT) {
    EXPECT_EQ(meshrun_infer(model, &in, 1, &out, 1), code);
    return text();
  };
  EXPECT_THAT(refused(array_of(wide, {2, 2}), output),
              AllOf(HasSubstr("Double"), HasSubstr("Float"), HasSubstr("set_dtype")));
  EXPECT_THAT(refused(input, array_of(y, {4, 1})), AllOf(HasSubstr("[4, 1]"), HasSubstr("[2, 1]")));
  EXPECT_THAT(refused(input, array_of(wide, {2, 1})), HasSubstr("Double of [2, 1]"));
  // The model's own complaint.
  EXPECT_THAT(refused(array_of(x, {1, 4}), output, MESHRUN_MODEL), HasSubstr("1x4"));
  meshrun_array bad = input;
  bad.data = nullptr;
  EXPECT_THAT(refused(bad, output), AllOf(HasSubstr("inputs"), HasSubstr("null pointer")));
  bad = input;
  bad.dtype = 9;
  EXPECT_THAT(refused(bad, output), HasSubstr("dtype 9"));
  bad = input;
  bad.dims = 12;
  EXPECT_THAT(refused(bad, output), HasSubstr("12 dimensions"));
  bad = input;
  bad.shape[1] = -2;
  EXPECT_THAT(refused(bad, output), HasSubstr("[2, -2]"));
  bad = input;
  bad.order = 5;
  EXPECT_THAT(refused(bad, output), HasSubstr("order 5"));
  EXPECT_EQ(meshrun_infer(model, &input, 1, nullptr, 1), MESHRUN_INVALID_ARGUMENT);
  EXPECT_EQ(meshrun_infer(model, &input, 0, &output, 1), MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), HasSubstr("0 arrays"));
  const std::array two = {input, input};
  EXPECT_EQ(meshrun_infer(model, two.data(), 2, &output, 1), MESHRUN_MODEL);
}

TEST_F(CApiTest, AnEmptyBatchIsInferred) {
  meshrun_model* const model = script();
  std::vector<float> none;
  meshrun_array input = array_of(none, {0, 2}), output = array_of(none, {0, 1});
  input.data = output.data = nullptr;
  EXPECT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
}

TEST_F(CApiTest, TrainsTowardsTheTargets) {
  for (const char* const optimizer : {"adam", "adamw", "sgd"}) {
    SCOPED_TRACE(optimizer);
    meshrun_model* const model = small();
    ASSERT_EQ(meshrun_model_set_training(model, "mse", optimizer, 0.02, ""), MESHRUN_OK) << text();
    std::vector<float> x = {0, 0, 0, 1, 1, 0, 1, 1}, wanted = {0, 1, 1, 2};
    const meshrun_array input = array_of(x, {4, 2}), target = array_of(wanted, {4, 1});
    double first = 0, last = 0;
    ASSERT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &first), MESHRUN_OK) << text();
    for (int step = 0; step < 100; ++step) {
      ASSERT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &last), MESHRUN_OK) << text();
    }
    EXPECT_LT(last, first / 10);
  }
}

TEST_F(CApiTest, AStepIsThatOfTheFormula) {
  meshrun_model* const model = script();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 0.5, nullptr), MESHRUN_OK) << text();
  // y = 1 x0 + 2 x1 + 3; at (1, 0) it is 4, wanted 2: the gradient of the loss is 2 (4 - 2) = 4.
  std::vector<float> x = {1, 0}, wanted = {2};
  const meshrun_array input = array_of(x, {1, 2}), target = array_of(wanted, {1, 1});
  double loss = 0;
  ASSERT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &loss), MESHRUN_OK) << text();
  EXPECT_DOUBLE_EQ(loss, 4);
  EXPECT_THAT(infer(model, {0, 0, 1, 0, 0, 1}, 3), ElementsAre(1, 0, 3));
  ASSERT_EQ(meshrun_model_set_learning_rate(model, 0), MESHRUN_OK) << text();
  ASSERT_EQ(meshrun_train_step(model, &input, 1, &target, 1, nullptr), MESHRUN_OK) << text();
  EXPECT_THAT(infer(model, {0, 0}, 1), ElementsAre(1));
}

TEST_F(CApiTest, ClipsTheNormOfAllGradients) {
  meshrun_model* const model = script();
  const char* const options = R"({"clip_grad_norm": 0.5})";
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 1, options), MESHRUN_OK) << text();
  std::vector<float> x = {0, 0}, wanted = {0};
  const meshrun_array input = array_of(x, {1, 2}), target = array_of(wanted, {1, 1});
  ASSERT_EQ(meshrun_train_step(model, &input, 1, &target, 1, nullptr), MESHRUN_OK) << text();
  EXPECT_THAT(infer(model, {0, 0}, 1), ElementsAre(FloatNear(2.5, 1e-5)));
}

TEST_F(CApiTest, SeveralOutputsHaveATargetEach) {
  meshrun_model* const model = script(/*two=*/true);
  ASSERT_EQ(meshrun_model_set_training(model, "l1", "sgd", 0, nullptr), MESHRUN_OK) << text();
  std::vector<float> x = {0, 0}, y = {1}, z = {1};
  const meshrun_array input = array_of(x, {1, 2});
  const std::array both = {array_of(y, {1, 1}), array_of(z, {1, 1})};
  double loss = 0;
  EXPECT_EQ(meshrun_train_step(model, &input, 1, both.data(), 2, &loss), MESHRUN_OK) << text();
  EXPECT_DOUBLE_EQ(loss, 2 + 5);
  EXPECT_EQ(meshrun_train_step(model, &input, 1, both.data(), 1, &loss), MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), HasSubstr("1 targets, and the model returns 2"));
  EXPECT_EQ(meshrun_infer(model, &input, 1, both.data(), 2), MESHRUN_OK) << text();
  EXPECT_EQ(y[0], 3);
  EXPECT_EQ(z[0], 6);
}

TEST_F(CApiTest, DoublePrecisionIsAskedFor) {
  meshrun_model* const model = script();
  ASSERT_EQ(meshrun_model_set_dtype(model, MESHRUN_FLOAT64), MESHRUN_OK) << text();
  std::vector<double> x = {1.0 / 3, 0}, y(1);
  const meshrun_array input = array_of(x, {1, 2}), output = array_of(y, {1, 1});
  ASSERT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
  EXPECT_DOUBLE_EQ(y[0], 1.0 / 3 + 3);
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "adam", 0.1, ""), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_train_step(model, &input, 1, &output, 1, nullptr), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_model_set_dtype(model, MESHRUN_FLOAT32), MESHRUN_INVALID_STATE);
  EXPECT_EQ(meshrun_model_set_dtype(model, MESHRUN_INT32), MESHRUN_INVALID_ARGUMENT);
}

TEST_F(CApiTest, ATrainingIsSetOnceAndByKnownNames) {
  meshrun_model* const model = small();
  std::vector<float> x(2), y(1);
  const meshrun_array input = array_of(x, {1, 2}), target = array_of(y, {1, 1});
  EXPECT_EQ(meshrun_train_step(model, &input, 1, &target, 1, nullptr), MESHRUN_INVALID_STATE);
  EXPECT_THAT(text(), HasSubstr("meshrun_model_set_training()"));
  EXPECT_EQ(meshrun_model_set_training(model, "mae", "adam", 1, ""), MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), AllOf(HasSubstr("mae"), HasSubstr("smooth_l1")));
  EXPECT_EQ(meshrun_model_set_training(model, "l1", "lion", 1, ""), MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), AllOf(HasSubstr("lion"), HasSubstr("adamw")));
  EXPECT_EQ(meshrun_model_set_training(model, "l1", "adam", NAN, ""), MESHRUN_INVALID_ARGUMENT);
  EXPECT_EQ(meshrun_model_set_training(model, "l1", "adam", 1, R"({"momentum": 1})"),
            MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), AllOf(HasSubstr("momentum"), HasSubstr("weight_decay")));
  EXPECT_EQ(meshrun_model_set_training(model, "l1", "adam", 1, ""), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_model_set_training(model, "l1", "adam", 1, ""), MESHRUN_INVALID_STATE);
}

TEST_F(CApiTest, ATiedParameterIsOne) {
  meshrun_model* const model = tied_script();
  int64_t count = 0;
  EXPECT_EQ(meshrun_model_parameter_count(model, &count), MESHRUN_OK) << text();
  EXPECT_EQ(count, 1);
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 0.01, ""), MESHRUN_OK) << text();
  step_tied(model);
  EXPECT_FLOAT_EQ(tied_weight(model), 2 - 0.01F * 32);

  meshrun_model* const clipped = tied_script();
  const char* const options = R"({"clip_grad_norm": 0.5})";
  ASSERT_EQ(meshrun_model_set_training(clipped, "mse", "sgd", 1, options), MESHRUN_OK) << text();
  step_tied(clipped);
  EXPECT_NEAR(tied_weight(clipped), 2 - 0.5, 1e-5);
}

TEST_F(CApiTest, ATiedParameterIsSteppedAsLibTorchStepsIt) {
  at::Tensor weight = at::full({}, 2.0F).set_requires_grad(true);
  torch::optim::Adam optimizer({weight}, torch::optim::AdamOptions(0.1));
  meshrun_model* const model = tied_script();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "adam", 0.1, ""), MESHRUN_OK) << text();
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    weight.pow(4).backward();
    optimizer.step();
    step_tied(model);
    EXPECT_NEAR(tied_weight(model), weight.item<float>(), 1e-5);
  }
}

TEST_F(CApiTest, ATiedParameterIsOneAfterACheckpointToo) {
  const std::string directory = path("checkpoints");
  std::filesystem::remove_all(directory);
  meshrun_model* const model = tied_script();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "adam", 0.1, ""), MESHRUN_OK) << text();
  step_tied(model);
  ASSERT_EQ(meshrun_model_save(model, directory.c_str(), 1), MESHRUN_OK) << text();
  meshrun_model* const later = tied_script();
  ASSERT_EQ(meshrun_model_set_training(later, "mse", "adam", 0.5, ""), MESHRUN_OK) << text();
  int64_t at = 0;
  ASSERT_EQ(meshrun_model_load(later, directory.c_str(), &at), MESHRUN_OK) << text();
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(tied_weight(later), tied_weight(model));
    step_tied(model);
    step_tied(later);
  }
  EXPECT_EQ(tied_weight(later), tied_weight(model));
}

TEST_F(CApiTest, ABatchOfNothingIsNoStep) {
  meshrun_model* const model = script();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "adam", 0.5, ""), MESHRUN_OK) << text();
  std::vector<float> none;
  const meshrun_array input = array_of(none, {0, 2}), target = array_of(none, {0, 1});
  double loss = 7;
  EXPECT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &loss), MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), HasSubstr("targets is empty"));
  EXPECT_EQ(loss, 7);
  EXPECT_THAT(infer(model, {0, 0}, 1), ElementsAre(3));
}

TEST_F(CApiTest, ACheckpointBringsModelAndOptimizerBack) {
  const std::string directory = path("checkpoints");
  std::filesystem::remove_all(directory);
  std::vector<float> x = {1, 2, 3, 4}, wanted = {5, 6};
  const meshrun_array input = array_of(x, {2, 2}), target = array_of(wanted, {2, 1});
  const auto step = [&](meshrun_model* model) {
    double loss = 0;
    EXPECT_EQ(meshrun_train_step(model, &input, 1, &target, 1, &loss), MESHRUN_OK) << text();
    return loss;
  };
  meshrun_model* const model = small();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "adam", 0.01, ""), MESHRUN_OK) << text();
  int64_t at = 7;
  EXPECT_EQ(meshrun_model_load(model, directory.c_str(), &at), MESHRUN_OK) << text();
  EXPECT_EQ(at, -1);
  step(model);
  EXPECT_EQ(meshrun_model_save(model, directory.c_str(), -4), MESHRUN_INVALID_ARGUMENT);
  ASSERT_EQ(meshrun_model_save(model, directory.c_str(), 1), MESHRUN_OK) << text();
  const double second = step(model), third = step(model);

  meshrun_model* const later = small();
  ASSERT_EQ(meshrun_model_set_training(later, "mse", "adam", 0.5, ""), MESHRUN_OK) << text();
  ASSERT_EQ(meshrun_model_load(later, directory.c_str(), &at), MESHRUN_OK) << text();
  EXPECT_EQ(at, 1);
  EXPECT_EQ(step(later), second);
  EXPECT_EQ(step(later), third);

  meshrun_model* other = nullptr;
  ASSERT_EQ(meshrun_model_create("fno", "", &other), MESHRUN_OK) << text();
  keep(other);
  ASSERT_EQ(meshrun_model_set_training(other, "mse", "adam", 0.5, ""), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_model_load(other, directory.c_str(), &at), MESHRUN_FILE);
  EXPECT_THAT(text(), AllOf(HasSubstr("fno"), HasSubstr("fully_connected")));
}

TEST_F(CApiTest, AScriptsCheckpointHasItsNames) {
  const std::string directory = path("checkpoints");
  std::filesystem::remove_all(directory);
  meshrun_model* const model = script();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "sgd", 0.01, ""), MESHRUN_OK) << text();
  ASSERT_EQ(meshrun_model_save(model, directory.c_str(), 3), MESHRUN_OK) << text();
  std::ifstream file(directory + "/step-3/model.safetensors", std::ios::binary);
  std::string head(400, '\0');
  file.read(head.data(), 400);
  EXPECT_THAT(head, AllOf(HasSubstr("\"inner.weight\""), HasSubstr("\"bias\"")));
}

TEST_F(CApiTest, AFileThatIsNoModelIsNamed) {
  meshrun_model* model = nullptr;
  EXPECT_EQ(meshrun_model_load_script("/nowhere/net.pt", &model), MESHRUN_FILE);
  EXPECT_THAT(text(), HasSubstr("/nowhere/net.pt"));
  EXPECT_EQ(meshrun_model_load_package("/nowhere/net.pt2", &model), MESHRUN_FILE);
  std::ofstream(path("text")) << "no archive";
  EXPECT_EQ(meshrun_model_load_script(path("text").c_str(), &model), MESHRUN_FILE);
  EXPECT_THAT(text(), HasSubstr("not a TorchScript file"));
  EXPECT_EQ(meshrun_model_load_package(path("text").c_str(), &model), MESHRUN_FILE);
  EXPECT_EQ(model, nullptr);
}

TEST_F(CApiTest, ADestroyedModelIsRefused) {
  meshrun_model* model = nullptr;
  ASSERT_EQ(meshrun_model_create("fully_connected", kSmall, &model), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_model_destroy(model), MESHRUN_OK);
  EXPECT_EQ(meshrun_model_destroy(model), MESHRUN_INVALID_ARGUMENT);
  EXPECT_THAT(text(), HasSubstr("destroyed before"));
  int64_t count = 0;
  EXPECT_EQ(meshrun_model_parameter_count(model, &count), MESHRUN_INVALID_ARGUMENT);
  EXPECT_EQ(meshrun_model_destroy(nullptr), MESHRUN_INVALID_ARGUMENT);
}

TEST_F(CApiTest, AModelEndsWithItsWorld) {
  meshrun_model* const model = small();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "adam", 0.1, ""), MESHRUN_OK) << text();
  std::vector<float> x(2), y(1);
  const meshrun_array input = array_of(x, {1, 2}), target = array_of(y, {1, 1});
  ASSERT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_train_step(model, &input, 1, &target, 1, nullptr), MESHRUN_INVALID_STATE);
  EXPECT_THAT(text(), HasSubstr("call meshrun_initialize()"));
  EXPECT_EQ(meshrun_infer(model, &input, 1, &target, 1), MESHRUN_INVALID_STATE);
  ASSERT_EQ(meshrun_initialize(), MESHRUN_OK) << text();
  EXPECT_EQ(meshrun_infer(model, &input, 1, &target, 1), MESHRUN_INVALID_STATE);
  EXPECT_THAT(text(), AllOf(HasSubstr("fully_connected"), HasSubstr("make it anew")));
}

// What a C++ program ends and begins without meshrun.h.
TEST_F(CApiTest, AModelEndsWithAWorldThatTheManagerEnded) {
  meshrun_model* const model = small();
  ASSERT_EQ(meshrun_model_set_training(model, "mse", "adam", 0.1, ""), MESHRUN_OK) << text();
  std::vector<float> x(2), y(1);
  const meshrun_array input = array_of(x, {1, 2}), target = array_of(y, {1, 1});
  ASSERT_EQ(meshrun_finalize(), MESHRUN_OK) << text();
  for (int world = 0; world < 2; ++world) {
    DistributedManager::initialize();
    EXPECT_EQ(meshrun_train_step(model, &input, 1, &target, 1, nullptr), MESHRUN_INVALID_STATE);
    EXPECT_THAT(text(), AllOf(HasSubstr("fully_connected"), HasSubstr("make it anew")));
    meshrun_model* const own = small();
    ASSERT_EQ(meshrun_model_set_training(own, "mse", "adam", 0.1, ""), MESHRUN_OK) << text();
    EXPECT_EQ(meshrun_train_step(own, &input, 1, &target, 1, nullptr), MESHRUN_OK) << text();
    DistributedManager::cleanup();
  }
}

TEST_F(CApiTest, TrapsOfTheCallerAreOffInsideAndBackAfterwards) {
  meshrun_model* const model = script();
  ASSERT_NE(feenableexcept(FE_INVALID | FE_DIVBYZERO), -1);
  std::vector<float> x = {INFINITY, -INFINITY}, y(1);
  const meshrun_array input = array_of(x, {1, 2}), output = array_of(y, {1, 1});
  EXPECT_EQ(meshrun_infer(model, &input, 1, &output, 1), MESHRUN_OK) << text();
  EXPECT_EQ(fegetexcept(), FE_INVALID | FE_DIVBYZERO);
  fedisableexcept(FE_ALL_EXCEPT);
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(CApiBootstrapTest, NumbersThatCannotBeAreRefused) {
  meshrun_bootstrap bootstrap{};
  bootstrap.rank = 3;
  bootstrap.world_size = 2;
  EXPECT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_ENVIRONMENT);
  EXPECT_THAT(text(), HasSubstr("rank 3 of a world of 2"));
  bootstrap = {.world_size = 1, .local_world_size = 1};
  EXPECT_EQ(meshrun_initialize_with(&bootstrap), MESHRUN_ENVIRONMENT);
  EXPECT_THAT(text(), HasSubstr("no function"));
  EXPECT_EQ(meshrun_initialize_with(nullptr), MESHRUN_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace meshrun
