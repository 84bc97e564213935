// A function object for OpenFOAM: learns the eddy viscosity of the turbulence model, cell by cell,
// while the solver runs, on all of its ranks. README.md has the commands.
//
//   functions { learn { type closureLearner; libs ("libclosure_learner.so"); steps 10; } }
#include <mpi.h>

#include <cmath>

#include "addToRunTimeSelectionTable.H"
#include "fvMeshFunctionObject.H"
#include "meshrun_mpi.h"
#include "volFields.H"

namespace Foam {
namespace functionObjects {

class closureLearner : public fvMeshFunctionObject {
 public:
  TypeName("closureLearner");

  closureLearner(const word& name, const Time& time, const dictionary& dict)
      : fvMeshFunctionObject(name, time, dict) {
    check(Pstream::parRun() ? meshrun_initialize_mpi(MPI_COMM_WORLD) : meshrun_initialize());
    check(meshrun_manual_seed(1));
    check(meshrun_model_create("fully_connected",
                               "{\"in_features\": 2, \"out_features\": 1, \"layer_size\": 32, "
                               "\"num_layers\": 2, \"activation_fn\": [\"tanh\"]}",
                               &model_));
    // OpenFOAM's fields are in double precision.
    check(meshrun_model_set_dtype(model_, MESHRUN_FLOAT64));
    check(meshrun_model_set_training(model_, "mse", "adam", 1e-2, nullptr));
    read(dict);
  }

  ~closureLearner() {
    meshrun_model_destroy(model_);
    meshrun_finalize();
  }

  bool read(const dictionary& dict) override {
    steps_ = dict.getOrDefault<label>("steps", 10);
    return fvMeshFunctionObject::read(dict);
  }

  // After each iteration of the solver: some steps of training on the fields as they are now.
  bool execute() override {
    sample();
    for (label i = 0; i < steps_; ++i) {
      const meshrun_array x = array(inputs_, 2), y = array(wanted_, 1);
      check(meshrun_train_step(model_, &x, 1, &y, 1, &loss_));
    }
    return true;
  }

  // How far the closure is off now, in a part of each cell's eddy viscosity.
  bool write() override {
    sample();
    scalarField learnt(wanted_.size());
    const meshrun_array x = array(inputs_, 2), z = array(learnt, 1);
    check(meshrun_infer(model_, &x, 1, &z, 1));
    scalar off = 0;
    forAll(learnt, i) off += std::fabs(std::exp(learnt[i] - wanted_[i]) - 1);
    const label cells = returnReduce(learnt.size(), sumOp<label>());
    Info << type() << ": " << cells << " cells, loss " << loss_ << ", eddy viscosity off by "
         << 100 * returnReduce(off, sumOp<scalar>()) / cells << " %" << nl;
    check(meshrun_model_save(model_, "closure", time_.timeIndex()));
    return true;
  }

 private:
  static void check(int code) {
    if (code != MESHRUN_OK) FatalErrorInFunction << meshrun_last_error() << exit(FatalError);
  }

  static meshrun_array array(scalarField& values, int64_t columns) {
    return {values.data(),
            MESHRUN_FLOAT64,
            2,
            MESHRUN_ROW_MAJOR,
            0,
            {values.size() / columns, columns},
            {}};
  }

  // What the closure sees of each cell, and what it is to say: logarithms, since the fields span
  // decades.
  void sample() {
    const auto field = [this](const char* name) -> const scalarField& {
      return mesh_.lookupObject<volScalarField>(name).primitiveField();
    };
    const scalarField &k = field("k"), &epsilon = field("epsilon"), &nut = field("nut");
    inputs_.resize(2 * k.size());
    wanted_.resize(k.size());
    forAll(k, i) {
      inputs_[2 * i] = std::log(k[i]);
      inputs_[2 * i + 1] = std::log(epsilon[i]) / 4;
      wanted_[i] = std::log(nut[i]);
    }
  }

  meshrun_model* model_ = nullptr;
  label steps_ = 10;
  double loss_ = 0;
  scalarField inputs_, wanted_;
};

defineTypeNameAndDebug(closureLearner, 0);
addToRunTimeSelectionTable(functionObject, closureLearner, dictionary);

}  // namespace functionObjects
}  // namespace Foam
