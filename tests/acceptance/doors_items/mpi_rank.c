/* A rank of an MPI program that trains by meshrun.
 *
 *   mpi_rank whole before|after    all ranks train; meshrun ends before or after MPI
 *   mpi_rank part                  all ranks but the last train; the last one computes, and hears of every step by MPI
 *   mpi_rank errors                what is refused, and with which words
 *
 * Each trainer has a share of a batch that is the same for any number of them, so the losses are too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meshrun_mpi.h"

enum { kBatch = 48, kSteps = 20, kWords = 1 << 18 };

static void check(int code) {
  if (code == MESHRUN_OK) return;
  fprintf(stderr, "meshrun error %d: %s\n", code, meshrun_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void say_place(void) {
  int32_t rank, size, local_rank, local_size, node;
  check(meshrun_rank(&rank));
  check(meshrun_world_size(&size));
  check(meshrun_local_rank(&local_rank));
  check(meshrun_local_world_size(&local_size));
  check(meshrun_node_rank(&node));
  printf("rank %d of %d, local rank %d of %d, node %d\n", rank, size, local_rank, local_size, node);
  fflush(stdout);
}

static meshrun_array array_of(float* data, int64_t rows, int64_t columns) {
  meshrun_array array = {
      .data = data, .dtype = MESHRUN_FLOAT32, .dims = 2, .shape = {rows, columns}};
  return array;
}

/* Messages of MPI that are on their way while meshrun trains: a ring over `ring`, each with its own words. */
struct traffic {
  MPI_Request requests[2];
  int* sent;
  int* received;
  int from;
};

static struct traffic send_round(MPI_Comm ring, int step) {
  struct traffic traffic;
  int rank, size;
  MPI_Comm_rank(ring, &rank);
  MPI_Comm_size(ring, &size);
  traffic.from = (rank + size - 1) % size;
  traffic.sent = malloc(kWords * sizeof(int));
  traffic.received = calloc(kWords, sizeof(int));
  for (int i = 0; i < kWords; ++i) traffic.sent[i] = rank * 1000 + step + i;
  MPI_Irecv(traffic.received, kWords, MPI_INT, traffic.from, step, ring, &traffic.requests[0]);
  MPI_Isend(traffic.sent, kWords, MPI_INT, (rank + 1) % size, step, ring, &traffic.requests[1]);
  return traffic;
}

static void await_round(struct traffic* traffic, int step) {
  MPI_Status statuses[2];
  MPI_Waitall(2, traffic->requests, statuses);
  for (int i = 0; i < kWords; ++i) {
    if (traffic->received[i] == traffic->from * 1000 + step + i) continue;
    fprintf(stderr, "MPI brought %d for word %d of step %d\n", traffic->received[i], i, step);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  free(traffic->sent);
  free(traffic->received);
}

/* `told`: rank of MPI_COMM_WORLD that hears each step's loss from trainer 0; -1: nobody. */
static void train(MPI_Comm trainers, int told) {
  static float points[kBatch * 2], values[kBatch];
  int rank, size;
  double loss = 0;
  meshrun_model* model = NULL;
  MPI_Comm_rank(trainers, &rank);
  MPI_Comm_size(trainers, &size);
  for (int i = 0; i < kBatch; ++i) {
    points[2 * i] = sinf((float)i);
    points[2 * i + 1] = cosf(3 * (float)i);
    values[i] = points[2 * i] * points[2 * i + 1];
  }
  const int own = kBatch / size;
  const meshrun_array x = array_of(points + 2 * rank * own, own, 2);
  const meshrun_array y = array_of(values + rank * own, own, 1);
  check(meshrun_manual_seed(5));
  check(meshrun_model_create(
      "fully_connected",
      "{\"in_features\": 2, \"out_features\": 1, \"layer_size\": 16, \"num_layers\": 2}", &model));
  check(meshrun_model_set_dtype(model, MESHRUN_FLOAT32));
  check(meshrun_model_set_training(model, "mse", "sgd", 0.1, NULL));
  for (int step = 0; step < kSteps; ++step) {
    struct traffic traffic = send_round(trainers, step);
    check(meshrun_train_step(model, &x, 1, &y, 1, &loss));
    if (told >= 0 && rank == 0) MPI_Send(&loss, 1, MPI_DOUBLE, told, step, MPI_COMM_WORLD);
    await_round(&traffic, step);
  }
  if (rank == 0) printf("trained %d steps on %d ranks: loss %.5f\n", kSteps, size, loss);
  fflush(stdout);
  check(meshrun_model_destroy(model));
}

/* The rank that does not train: Jacobi's method, until the last step. */
static void compute(void) {
  static double cells[10000];
  double loss = 0;
  int sweeps = 0;
  cells[0] = 1;
  for (int step = 0; step < kSteps; ++step) {
    MPI_Request request;
    int done = 0;
    MPI_Irecv(&loss, 1, MPI_DOUBLE, 0, step, MPI_COMM_WORLD, &request);
    while (!done) {
      for (int i = 1; i < 9999; ++i) cells[i] = (cells[i - 1] + cells[i + 1]) / 2;
      ++sweeps;
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
  }
  printf("computed beside it: %d sweeps or more, %s, heard loss %.5f\n", kSteps,
         sweeps >= kSteps ? "done" : "too few", loss);
  fflush(stdout);
}

static void refused(int code) { printf("refused %d: %s\n", code, meshrun_last_error()); }

static void errors(int* argc, char*** argv) {
  MPI_Comm nobody = MPI_COMM_NULL;
  refused(meshrun_initialize_mpi(MPI_COMM_WORLD));
  MPI_Init(argc, argv);
  refused(meshrun_initialize_mpi(nobody));
  check(meshrun_initialize_mpi(MPI_COMM_SELF));
  say_place();
  check(meshrun_finalize());
  MPI_Finalize();
  refused(meshrun_initialize_mpi(MPI_COMM_WORLD));
}

int main(int argc, char** argv) {
  MPI_Comm trainers;
  int rank, size;
  const char* const mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "errors") == 0) {
    errors(&argc, &argv);
    return 0;
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (strcmp(mode, "part") == 0) {
    MPI_Comm_split(MPI_COMM_WORLD, rank < size - 1 ? 0 : MPI_UNDEFINED, rank, &trainers);
    if (trainers == MPI_COMM_NULL) {
      compute();
    } else {
      check(meshrun_initialize_mpi(trainers));
      say_place();
      train(trainers, size - 1);
      check(meshrun_finalize());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
  }
  check(meshrun_initialize_mpi(MPI_COMM_WORLD));
  say_place();
  train(MPI_COMM_WORLD, -1);
  if (strcmp(argc > 2 ? argv[2] : "", "after") == 0) {
    MPI_Finalize();
    check(meshrun_finalize());
  } else {
    check(meshrun_finalize());
    MPI_Finalize();
  }
  return 0;
}
