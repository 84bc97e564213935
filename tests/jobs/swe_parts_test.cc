// The solver and the command line of the swe job. The solver runs in worlds of one to three ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "jobs/runtime/job.h"
#include "jobs/swe/initial_state.h"
#include "jobs/swe/options.h"
#include "jobs/swe/solver.h"
#include "parallel/collectives/all_gather_v.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun::swe {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

SplitRange own_columns(const JoinedWorld& world, const ShallowWaterParameters& parameters) {
  return split_range(parameters.columns, world.size, world.rank);
}

Tensor whole(const Tensor& field, const JoinedWorld& world,
             const ShallowWaterParameters& parameters) {
  return all_gather_v(field, compute_split_shapes(parameters.columns, world.size), 3, true,
                      world.manager.world());
}

Tensor advanced(const Tensor& own, const JoinedWorld& world,
                const ShallowWaterParameters& parameters, double dt, int64_t steps) {
  ShallowWater water(parameters, world.manager.world());
  return whole(water.to_field(water.advance(water.to_spectrum(own), dt, steps)), world, parameters);
}

double mass(const Tensor& state) { return state.select(1, 2).mean().item<double>(); }

double energy(const Tensor& state, double gravity) {
  const Tensor u = state.select(1, 0);
  const Tensor v = state.select(1, 1);
  const Tensor h = state.select(1, 2);
  return (h * (u.square() + v.square()) + gravity * h.square()).mean().item<double>() / 2;
}

// A plane inertia-gravity wave of mean depth 1, omega^2 = f^2 + g (k^2 + l^2), in all columns.
Tensor wave(const ShallowWaterParameters& parameters, double amplitude, int k, int l, double time) {
  const auto points = [](int64_t count) {
    return at::arange(count, at::kDouble) * (2 * std::numbers::pi / static_cast<double>(count));
  };
  const double f = parameters.coriolis;
  const double g = parameters.gravity;
  const double omega = std::sqrt(f * f + g * (k * k + l * l));
  const Tensor phase = k * points(parameters.columns).unsqueeze(0) +
                       l * points(parameters.rows).unsqueeze(1) - omega * time;
  const double speed = amplitude * g / (omega * omega - f * f);
  return at::stack({speed * (omega * k * phase.cos() - f * l * phase.sin()),
                    speed * (omega * l * phase.cos() + f * k * phase.sin()),
                    1 + amplitude * phase.cos()})
      .unsqueeze(0);
}

// Against the exact linear wave, relative to the amplitude.
double wave_error(const JoinedWorld& world, const ShallowWaterParameters& parameters, double dt,
                  int64_t steps) {
  constexpr double kAmplitude = 1e-7;  // what is not linear is of this relative size
  const SplitRange columns = own_columns(world, parameters);
  const Tensor start = wave(parameters, kAmplitude, 2, -3, 0);
  const Tensor end = advanced(start.narrow(3, columns.begin, columns.size()).contiguous(), world,
                              parameters, dt, steps);
  const Tensor exact = wave(parameters, kAmplitude, 2, -3, dt * static_cast<double>(steps));
  return (end - exact).abs().max().item<double>() / kAmplitude;
}

const bool kWave = register_rank_function("swe_wave", [] {
  const JoinedWorld world;
  const ShallowWaterParameters coarse = {
      .rows = 16, .columns = 12, .coriolis = 1.5, .gravity = 0.7};
  ShallowWaterParameters fine = coarse;
  fine.rows = 20;
  fine.columns = 33;
  for (const ShallowWaterParameters& parameters : {coarse, fine}) {
    EXPECT_LT(wave_error(world, parameters, 0.005, 200), 2e-6);
    // In time the method is of fourth order.
    const double rate =
        std::log2(wave_error(world, parameters, 0.1, 10) / wave_error(world, parameters, 0.05, 20));
    EXPECT_NEAR(rate, 4, 0.1);
  }
});

TEST(ShallowWaterTest, AnInertiaGravityWaveHasItsExactFrequencyAtTwoResolutions) {
  run_in_worlds("swe_wave", {1, 2}, {"ucx"});
}

const bool kConserves = register_rank_function("swe_conserves", [] {
  const JoinedWorld world;
  const ShallowWaterParameters parameters = {.rows = 48, .columns = 48};
  const Tensor own = random_states(1, 0, 2, parameters, own_columns(world, parameters));
  const Tensor start = whole(own, world, parameters);
  const Tensor end = advanced(own, world, parameters, 0.01, 100);
  EXPECT_GT((end - start).abs().max().item<double>(), 0.1) << "something moves";
  EXPECT_NEAR(mass(end), mass(start), 1e-14);
  EXPECT_NEAR(mass(start), 1, 1e-14);
  EXPECT_NEAR(energy(end, 1) / energy(start, 1), 1, 1e-6);
  // Damping takes energy and no mass.
  ShallowWaterParameters damped = parameters;
  damped.damping = 20;
  const Tensor slowed = advanced(own, world, damped, 0.01, 100);
  EXPECT_NEAR(mass(slowed), 1, 1e-14);
  EXPECT_LT(energy(slowed, 1), energy(end, 1) * (1 - 1e-5));
});

TEST(ShallowWaterTest, ConservesMassToRoundingAndEnergyNearly) {
  run_in_worlds("swe_conserves", {1}, {"ucx"});
}

const bool kSplit = register_rank_function("swe_split", [] {
  const JoinedWorld world;
  const ShallowWaterParameters parameters = {.rows = 18, .columns = 23, .damping = 1};
  const Tensor own = random_states(3, 1, 2, parameters, own_columns(world, parameters));
  const Tensor all = random_states(3, 1, 2, parameters, {0, parameters.columns});
  EXPECT_LT((whole(own, world, parameters) - all).abs().max().item<double>(), 1e-14);
  const Tensor end = advanced(own, world, parameters, 0.02, 50);
  // Every rank for itself.
  ShallowWater alone(parameters, world.manager.make_group("alone", {world.rank}));
  const Tensor expected = alone.to_field(alone.advance(alone.to_spectrum(all), 0.02, 50));
  EXPECT_LT((end - expected).abs().max().item<double>(), 1e-10);
});

TEST(ShallowWaterTest, IsTheSameOnOneTwoAndThreeRanks) {
  run_in_worlds("swe_split", {1, 2, 3}, {"ucx"});
}

const bool kRefuses = register_rank_function("swe_refuses", [] {
  const JoinedWorld world;
  const auto group = world.manager.world();
  EXPECT_THROW(ShallowWater({.rows = 3}, group), c10::ValueError);
  EXPECT_THROW(ShallowWater({.gravity = 0}, group), c10::ValueError);
  EXPECT_THROW(ShallowWater({.damping = -1}, group), c10::ValueError);
  ShallowWater water({.rows = 8, .columns = 8}, group);
  EXPECT_THROW(water.to_spectrum(at::zeros({1, 3, 8, 7}, at::kDouble)), c10::ValueError);
  EXPECT_THROW(water.to_spectrum(at::zeros({1, 3, 8, 8}, at::kFloat)), c10::ValueError);
  EXPECT_THROW(water.advance(at::zeros({1, 3, 8, 8}, at::kDouble), 0.1, 1), c10::ValueError);
});

TEST(ShallowWaterTest, RefusesWhatDoesNotFit) { run_in_worlds("swe_refuses", {1}, {"ucx"}); }

TEST(InitialStateTest, IsAFunctionOfSeedAndNumberInBalanceNearly) {
  const ShallowWaterParameters parameters = {.rows = 16, .columns = 16};
  const Tensor states = random_states(1, 0, 60, parameters, {0, 16});
  EXPECT_TRUE(at::allclose(random_states(1, 4, 2, parameters, {3, 9}),
                           states.narrow(0, 4, 2).narrow(3, 3, 6), 0, 1e-14));
  EXPECT_FALSE(at::allclose(random_states(2, 0, 60, parameters, {0, 16}), states));
  EXPECT_EQ(random_states(1, 0, 0, parameters, {0, 16}).size(0), 0);
  const double speed = states.narrow(1, 0, 2).square().sum(1).mean().sqrt().item<double>();
  EXPECT_NEAR(speed, 0.3, 0.02);
  EXPECT_GT(states.select(1, 2).min().item<double>(), 0);
}

TEST(SweOptionsTest, FlagsAreReadAndWrongOnesNamed) {
  const auto parse = [](std::vector<const char*> words) {
    words.insert(words.begin(), "swe");
    return parse_options(static_cast<int>(words.size()), words.data());
  };
  const auto options = parse({"--steps", "7", "--intervals", "3", "--spatial", "2"});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->steps, 7);
  EXPECT_EQ(options->intervals, 3);
  EXPECT_EQ(options->spatial, 2);
  const std::vector<std::vector<const char*>> wrong = {
      {"--steps", "0"}, {"--interval", "0"}, {"--batch", "many"},
      {"--size", "1"},  {"--resume"},        {"--png", "/no/such/directory/x.png"}};
  for (const auto& words : wrong) {
    EXPECT_THAT([&] { parse(words); }, ThrowsMessage<jobs::UsageError>(HasSubstr(words[0])));
  }
}

}  // namespace
}  // namespace meshrun::swe
