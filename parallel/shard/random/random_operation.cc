#include "parallel/shard/random/random_operation.h"

#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "fmt/format.h"
#include "parallel/base/traced_calls.h"

namespace meshrun {
namespace {

struct Counting {
  std::mutex mutex;
  // guarded by mutex
  RandomOperation next;
  bool is_seeded = false;
};

Counting& counting() {
  static Counting state;
  return state;
}

uint64_t default_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.current_seed();
}

// Begins again after a new seed. With the lock.
RandomOperation& current(Counting& state) {
  const uint64_t seed = default_seed();
  if (!state.is_seeded || state.next.seed != seed) state.next = {seed, 0};
  state.is_seeded = true;
  return state.next;
}

}  // namespace

RandomOperation next_random_operation(const std::optional<at::Generator>& generator) {
  if (is_compiling()) throw NotTraceableError("random numbers that an operator draws by itself");
  if (generator && generator->defined() &&
      generator->unsafeGetGeneratorImpl() !=
          at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl()) {
    auto* const own = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::scoped_lock lock(own->mutex_);
    return {own->current_seed(), own->random64()};
  }
  Counting& state = counting();
  const std::scoped_lock lock(state.mutex);
  RandomOperation& next = current(state);
  return {next.seed, next.counter++};
}

void detail::reseed(uint64_t seed) {
  at::manual_seed(seed);
  Counting& state = counting();
  const std::scoped_lock lock(state.mutex);
  state.next = {seed, 0};
  state.is_seeded = true;
}

RandomOperation random_state() {
  Counting& state = counting();
  const std::scoped_lock lock(state.mutex);
  return current(state);
}

void set_random_state(const RandomOperation& wanted) {
  Counting& state = counting();
  const std::scoped_lock lock(state.mutex);
  RandomOperation& next = current(state);
  if (next.seed != wanted.seed) {
    C10_THROW_ERROR(ValueError,
                    fmt::format("the random state has seed {}, and the default generator {}: call "
                                "torch::manual_seed({}) first",
                                wanted.seed, next.seed, wanted.seed));
  }
  next = wanted;
}

}  // namespace meshrun
