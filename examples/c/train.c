/* A network in a C program, trained on all of its ranks.
 *
 *   train                                            one rank
 *   meshrun run --nproc-per-node 2 -- train          under this, torchrun, mpirun or srun
 *   mpirun -n 2 train_mpi                            compiled with -DWITH_MPI: a communicator of MPI
 *
 * It learns z = sin(3 x) y from points that each rank draws itself. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "meshrun.h"
#ifdef WITH_MPI
#include "meshrun_mpi.h"
#endif

enum { kPoints = 256 };

static void check(int code) {
  if (code == MESHRUN_OK) return;
  fprintf(stderr, "meshrun error %d: %s\n", code, meshrun_last_error());
  exit(1);
}

static float next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / (1 << 24);
}

static void draw(uint32_t* state, float* points, float* values) {
  for (int i = 0; i < kPoints; ++i) {
    points[2 * i] = next(state);
    points[2 * i + 1] = next(state);
    values[i] = sinf(3 * points[2 * i]) * points[2 * i + 1];
  }
}

int main(int argc, char** argv) {
  const int steps = argc > 1 ? atoi(argv[1]) : 300;
  static float points[kPoints * 2], values[kPoints], learnt[kPoints];
  const meshrun_array x = {
      .data = points, .dtype = MESHRUN_FLOAT32, .dims = 2, .shape = {kPoints, 2}};
  const meshrun_array y = {
      .data = values, .dtype = MESHRUN_FLOAT32, .dims = 2, .shape = {kPoints, 1}};
  const meshrun_array z = {
      .data = learnt, .dtype = MESHRUN_FLOAT32, .dims = 2, .shape = {kPoints, 1}};
  meshrun_model* model = NULL;
  int32_t rank = 0, ranks = 0;
  double loss = 0, largest = 0;

  if (meshrun_abi_version() != MESHRUN_ABI_VERSION) {
    fprintf(stderr, "compile this program anew: meshrun %s has another ABI\n", meshrun_version());
    return 1;
  }
#ifdef WITH_MPI
  MPI_Init(&argc, &argv);
  check(meshrun_initialize_mpi(MPI_COMM_WORLD));
#else
  check(meshrun_initialize());
#endif
  check(meshrun_rank(&rank));
  check(meshrun_world_size(&ranks));

  check(meshrun_manual_seed(1));
  check(meshrun_model_create("fully_connected",
                             "{\"in_features\": 2, \"out_features\": 1, \"layer_size\": 32, "
                             "\"num_layers\": 2, \"activation_fn\": [\"tanh\"]}",
                             &model));
  check(meshrun_model_set_training(model, "mse", "adam", 0.01, NULL));
  uint32_t state = 17 + (uint32_t)rank;
  for (int step = 0; step < steps; ++step) {
    draw(&state, points, values);
    check(meshrun_train_step(model, &x, 1, &y, 1, &loss));
  }
  draw(&state, points, values);
  check(meshrun_infer(model, &x, 1, &z, 1));
  for (int i = 0; i < kPoints; ++i) largest = fmax(largest, fabs(learnt[i] - values[i]));
  if (rank == 0) {
    printf("train: %d steps on %d rank(s), loss %.6f, largest error %.3f\n", steps, ranks, loss,
           largest);
  }
  check(meshrun_model_destroy(model));
  check(meshrun_finalize());
#ifdef WITH_MPI
  MPI_Finalize();
#endif
  return 0;
}
