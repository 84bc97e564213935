#include "python/extension/elastic_bindings.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/elastic/elastic_context.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/elastic/elastic_steps.h"
#include "python/extension/foreign_optimizer.h"
#include "python/extension/module_mirror.h"
#include "python/extension/raised_errors.h"
#include "torch/csrc/distributed/c10d/GroupRegistry.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::python {
namespace {

namespace py = pybind11;
using Unlocked = py::call_guard<py::gil_scoped_release>;

// (name, tensor, is_parameter)
using Entries = std::vector<std::tuple<std::string, at::Tensor, bool>>;

std::shared_ptr<torch::nn::Module> mirror(const Entries& entries) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor, is_parameter] : entries) {
    tensors.push_back({name, tensor, is_parameter});
  }
  return mirror_of(tensors);
}

// An object that C++ may drop without Python's interpreter lock.
class Held {
 public:
  explicit Held(py::object object)
      : object_(new py::object(std::move(object)), [](py::object* held) {
          const py::gil_scoped_acquire lock;
          delete held;
        }) {}
  py::object& operator*() const { return *object_; }

 private:
  std::shared_ptr<py::object> object_;
};

std::function<void()> without_lock(py::object function) {
  return [held = Held(std::move(function))] {
    const py::gil_scoped_acquire lock;
    (*held)();
  };
}

// What Python keeps beside a model, in an ElasticState or in KeptValues, with the mirrors that
// these refer to.
template <typename Target>
class Keeper {
 public:
  virtual ~Keeper() = default;
  virtual Target& get() = 0;

  void keep_tensor(const std::string& name, const at::Tensor& value) { get().keep(name, value); }
  void keep_module(const std::string& name, const Entries& entries) {
    modules_.push_back(mirror(entries));
    get().keep(name, *modules_.back());
  }
  void keep_optimizer(const std::string& name, py::object states) {
    optimizers_.push_back(std::make_unique<PythonOptimizer>(std::move(states)));
    get().keep(name, static_cast<torch::optim::Optimizer&>(*optimizers_.back()));
  }
  void keep_functions(const std::string& name, py::object save, py::object load) {
    KeptValues::Save save_bytes = [held = Held(std::move(save))]() -> std::string {
      const py::gil_scoped_acquire lock;
      return (*held)().template cast<py::bytes>();
    };
    KeptValues::Load load_bytes = [held = Held(std::move(load))](const std::string& bytes) {
      const py::gil_scoped_acquire lock;
      (*held)(py::bytes(bytes));
    };
    get().keep(name, std::move(save_bytes), std::move(load_bytes));
  }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<std::unique_ptr<PythonOptimizer>> optimizers_;
};

class Kept : public Keeper<KeptValues> {
 public:
  KeptValues& get() override { return values_; }

 private:
  KeptValues values_;
};

// A Python exception on its way through run(), which must not see it.
struct RaisedInPython {
  std::shared_ptr<py::error_already_set> error;
};

class Context {
 public:
  Context(py::object on_joined, py::object log)
      : context_(std::make_unique<ElasticContext>(options(std::move(on_joined), std::move(log)))) {}

  // `body` returns when its work is done. `left` is called after an exception, before the world is
  // left: it drops what the body has made.
  void run(const py::object& body, const py::object& left) {
    std::shared_ptr<py::error_already_set> error;
    {
      const py::gil_scoped_release unlocked;
      try {
        context_->run([&] { call(body, left); });
      } catch (const RaisedInPython& raised) {
        error = raised.error;
      }
    }
    if (error) throw py::error_already_set(*error);
  }
  void at_end(py::object act) { context_->at_end(without_lock(std::move(act))); }
  ElasticContext& get() { return *context_; }

 private:
  static ElasticOptions options(py::object on_joined, py::object log) {
    ElasticOptions options;
    options.on_joined = without_lock(std::move(on_joined));
    if (!log.is_none()) {
      options.log = [held = Held(std::move(log))](const std::string& text) {
        const py::gil_scoped_acquire lock;
        (*held)(text);
      };
    }
    return options;
  }

  static void call(const py::object& body, const py::object& left) {
    const py::gil_scoped_acquire lock;
    std::shared_ptr<py::error_already_set> error;
    try {
      body();
      return;
    } catch (py::error_already_set& raised) {
      error = std::make_shared<py::error_already_set>(raised);
    }
    std::exception_ptr cause = cause_of(*error);
    if (!cause) throw RaisedInPython{std::move(error)};
    left(error->value());
    error.reset();  // and with it the traceback, whose frames hold the body's objects
    std::rethrow_exception(cause);
  }

  std::unique_ptr<ElasticContext> context_;
};

class Steps {
 public:
  explicit Steps(ElasticSteps steps) : steps_(std::move(steps)) {}
  int64_t next() {
    bool is_over = false;
    int64_t step = 0;
    {
      const py::gil_scoped_release unlocked;
      if (at_) {
        ++*at_;
      } else {
        at_ = steps_.begin();
      }
      is_over = !(*at_ != steps_.end());
      if (!is_over) step = **at_;
    }
    if (is_over) throw py::stop_iteration();
    return step;
  }

 private:
  ElasticSteps steps_;
  std::optional<ElasticSteps::Iterator> at_;
};

class State : public Keeper<ElasticState> {
 public:
  State(std::shared_ptr<Context> context, const Entries& entries, py::object states)
      : context_(std::move(context)),
        module_(mirror(entries)),
        optimizer_(std::make_unique<PythonOptimizer>(std::move(states))) {
    const py::gil_scoped_release unlocked;
    state_.emplace(context_->get(), *module_, *optimizer_);
  }
  // Leaves in the context what it remembers.
  void close() { state_.reset(); }
  ElasticState& get() override {
    TORCH_CHECK(state_,
                "this ElasticState is of a world that is over: make one in each world, in the body "
                "of ElasticContext.run()");
    return *state_;
  }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<PythonOptimizer> optimizer_;
  std::optional<ElasticState> state_;
};

// The module and the optimizer are mirrored in each call: a checkpoint takes longer.
class Checkpoints {
 public:
  // Times in seconds.
  Checkpoints(std::string path, std::map<std::string, std::string> identity, int64_t keep,
              std::optional<int64_t> keep_for, int64_t keep_every, std::optional<double> timeout,
              std::string on_commit, const std::optional<std::string>& group)
      : directory_(std::move(path), options(std::move(identity), keep, keep_for, keep_every,
                                            timeout, std::move(on_commit), group)) {}

  void save(const Entries& entries, py::object states, int64_t step,
            std::map<std::string, std::string> sampler, const KeptValues* kept,
            bool in_background) {
    const auto module = mirror(entries);
    PythonOptimizer optimizer(std::move(states));
    const py::gil_scoped_release unlocked;
    const TrainingProgress progress{step, std::move(sampler)};
    if (in_background) {
      directory_.save_async(*module, optimizer, progress, *kept);
    } else {
      directory_.save(*module, optimizer, progress, *kept);
    }
  }
  void wait() {
    const py::gil_scoped_release unlocked;
    directory_.wait();
  }
  bool is_writing() const { return directory_.is_writing(); }
  void check_writable() const {
    const py::gil_scoped_release unlocked;
    directory_.check_writable();
  }
  bool has_committed() const {
    const py::gil_scoped_release unlocked;
    return directory_.has_committed();
  }
  std::optional<std::pair<int64_t, std::map<std::string, std::string>>> load(
      const Entries& entries, py::object states, const KeptValues* kept) {
    const auto module = mirror(entries);
    PythonOptimizer optimizer(std::move(states));
    const py::gil_scoped_release unlocked;
    auto progress = directory_.load(*module, optimizer, *kept);
    if (!progress) return std::nullopt;
    return std::pair(progress->step, std::move(progress->sampler));
  }

 private:
  static CheckpointOptions options(std::map<std::string, std::string> identity, int64_t keep,
                                   std::optional<int64_t> keep_for, int64_t keep_every,
                                   std::optional<double> timeout, std::string on_commit,
                                   const std::optional<std::string>& group) {
    CheckpointOptions options;
    options.identity = std::move(identity);
    options.keep = keep;
    options.keep_every = keep_every;
    options.on_commit = std::move(on_commit);
    if (keep_for) options.keep_for = std::chrono::seconds(*keep_for);
    if (timeout) {
      options.timeout = std::chrono::milliseconds(std::llround(1000 * *timeout));
    }
    if (group) options.group = c10d::resolve_process_group(*group);
    return options;
  }

  CheckpointDirectory directory_;
};

template <typename Class, typename Bound>
void bind_keeper(Bound& bound) {
  bound.def("keep_tensor", &Class::keep_tensor)
      .def("keep_module", &Class::keep_module)
      .def("keep_optimizer", &Class::keep_optimizer)
      .def("keep_functions", &Class::keep_functions);
}

}  // namespace

void bind_elastic(py::module_& module) {
  py::class_<KeptValues>(module, "KeptView");
  py::class_<Context, std::shared_ptr<Context>>(module, "ElasticContext")
      .def(py::init<py::object, py::object>(), py::arg("on_joined"), py::arg("log"))
      .def("run", &Context::run)
      .def("at_end", &Context::at_end)
      .def_property_readonly("is_quiesce_wanted",
                             [](Context& self) { return self.get().is_quiesce_wanted(); })
      .def_property_readonly("is_save_wanted",
                             [](Context& self) { return self.get().is_save_wanted(); })
      .def(
          "stand_still", [](Context& self, int64_t step) { self.get().stand_still(step); },
          Unlocked());
  py::class_<Steps>(module, "ElasticSteps")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &Steps::next);
  py::class_<State> state(module, "ElasticState");
  bind_keeper<State>(state);
  state.def(py::init<std::shared_ptr<Context>, const Entries&, py::object>())
      .def("close", &State::close)
      .def("seed_each_step",
           [](State& self, uint64_t seed, std::optional<int64_t> stream) {
             if (stream) {
               self.get().seed_each_step(seed, *stream);
             } else {
               self.get().seed_each_step(seed);
             }
           })
      .def("seed_step", [](State& self, int64_t step) { self.get().seed_step(step); })
      .def(
          "restore", [](State& self) { return self.get().restore(); }, Unlocked())
      .def(
          "commit", [](State& self, int64_t steps) { self.get().commit(steps); }, Unlocked())
      .def(
          "begin_update", [](State& self) { self.get().begin_update(); }, Unlocked())
      .def(
          "end_update", [](State& self, bool is_whole) { self.get().end_update(is_whole); },
          Unlocked())
      .def(
          "steps",
          [](State& self, int64_t first, int64_t last, int64_t agree_every) {
            return std::make_unique<Steps>(self.get().steps(first, last, agree_every));
          },
          py::keep_alive<0, 1>())
      .def(
          "view", [](State& self) { return &self.get().kept(); },
          py::return_value_policy::reference_internal);
  py::class_<Kept> kept(module, "KeptValues");
  bind_keeper<Kept>(kept);
  kept.def(py::init<>())
      .def(
          "view", [](Kept& self) { return &std::as_const(self.get()); },
          py::return_value_policy::reference_internal);
  py::class_<Checkpoints>(module, "CheckpointDirectory")
      .def(py::init<std::string, std::map<std::string, std::string>, int64_t,
                    std::optional<int64_t>, int64_t, std::optional<double>, std::string,
                    const std::optional<std::string>&>())
      .def("save", &Checkpoints::save)
      .def("wait", &Checkpoints::wait)
      .def("is_writing", &Checkpoints::is_writing)
      .def("check_writable", &Checkpoints::check_writable)
      .def("has_committed", &Checkpoints::has_committed)
      .def("load", &Checkpoints::load);
}

}  // namespace meshrun::python
