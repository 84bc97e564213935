/* See meshrun_mpi.h. The one source that includes mpi.h: compile it with your MPI's mpicc. */
#include "meshrun_mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

struct communicator {
  MPI_Comm own; /* a duplicate, which returns errors */
};

/* MPI's own words, after what was tried. */
static int failed(int code, const char* what, char* error, size_t error_bytes) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  snprintf(error, error_bytes, "%s: %.*s", what, length, text);
  return MESHRUN_COMMUNICATION;
}

static int refuse(const char* why, char* error, size_t error_bytes) {
  snprintf(error, error_bytes, "%s", why);
  return MESHRUN_ENVIRONMENT;
}

static int broadcast(void* context, void* data, size_t bytes, char* error, size_t error_bytes) {
  const struct communicator* const communicator = context;
  if (bytes > INT_MAX) return refuse("MPI_Bcast counts in int", error, error_bytes);
  const int code = MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, communicator->own);
  return code == MPI_SUCCESS ? 0 : failed(code, "MPI_Bcast", error, error_bytes);
}

static int all_gather(void* context, const void* own, void* all, size_t bytes, char* error,
                      size_t error_bytes) {
  const struct communicator* const communicator = context;
  if (bytes > INT_MAX) return refuse("MPI_Allgather counts in int", error, error_bytes);
  const int code = MPI_Allgather((void*)own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
                                 communicator->own);
  return code == MPI_SUCCESS ? 0 : failed(code, "MPI_Allgather", error, error_bytes);
}

/* What is wrong before any call that may wait for other ranks. */
static int check(MPI_Comm communicator, char* error, size_t error_bytes) {
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE, is_main = 0, is_inter = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    return refuse("MPI is not initialised: call MPI_Init() before meshrun_initialize_mpi()", error,
                  error_bytes);
  }
  MPI_Finalized(&finalized);
  if (finalized) {
    return refuse("MPI is finalised: call meshrun_initialize_mpi() before MPI_Finalize()", error,
                  error_bytes);
  }
  if (communicator == MPI_COMM_NULL) {
    return refuse(
        "the communicator is MPI_COMM_NULL: ranks that are not in it (colour MPI_UNDEFINED of "
        "MPI_Comm_split) do not call meshrun_initialize_mpi()",
        error, error_bytes);
  }
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&is_main);
  if (level < MPI_THREAD_SERIALIZED && !is_main) {
    return refuse(
        "this is not the thread that called MPI_Init(), and MPI's thread level lets no other call "
        "it: use that thread, or MPI_Init_thread() with MPI_THREAD_SERIALIZED",
        error, error_bytes);
  }
  MPI_Comm_test_inter(communicator, &is_inter);
  if (is_inter) {
    return refuse("the communicator is an intercommunicator: merge it (MPI_Intercomm_merge)", error,
                  error_bytes);
  }
  return MESHRUN_OK;
}

/* Numbers the hosts by their first ranks. Collective over `own`. */
static int find_node(MPI_Comm own, int rank, int size, int first_of_host, int32_t* node) {
  int* const first = malloc((size_t)size * sizeof(int));
  if (first == NULL) return MPI_ERR_NO_MEM;
  const int code = MPI_Allgather(&first_of_host, 1, MPI_INT, first, 1, MPI_INT, own);
  *node = 0;
  for (int other = 0; code == MPI_SUCCESS && other < first[rank]; ++other) {
    if (first[other] == other) ++*node;
  }
  free(first);
  return code;
}

static int read_layout(MPI_Comm own, meshrun_bootstrap* bootstrap) {
  MPI_Comm host = MPI_COMM_NULL;
  int rank, size, local_rank, local_size, first;
  int code = MPI_Comm_rank(own, &rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(own, &size);
  if (code == MPI_SUCCESS) {
    code = MPI_Comm_split_type(own, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  }
  if (code != MPI_SUCCESS) return code;
  first = rank;
  MPI_Comm_rank(host, &local_rank);
  MPI_Comm_size(host, &local_size);
  code = MPI_Bcast(&first, 1, MPI_INT, 0, host);
  MPI_Comm_free(&host);
  if (code != MPI_SUCCESS) return code;
  bootstrap->rank = rank;
  bootstrap->world_size = size;
  bootstrap->local_rank = local_rank;
  bootstrap->local_world_size = local_size;
  return find_node(own, rank, size, first, &bootstrap->node_rank);
}

int meshrun_mpi_open(MPI_Comm communicator, meshrun_bootstrap* bootstrap, char* error,
                     size_t error_bytes) {
  struct communicator* context;
  int code = check(communicator, error, error_bytes);
  if (code != MESHRUN_OK) return code;
  context = malloc(sizeof(*context));
  if (context == NULL) return refuse("no memory is left", error, error_bytes);
  code = MPI_Comm_dup(communicator, &context->own);
  if (code == MPI_SUCCESS) {
    MPI_Comm_set_errhandler(context->own, MPI_ERRORS_RETURN);
    bootstrap->method = "MPI";
    bootstrap->context = context;
    bootstrap->broadcast = broadcast;
    bootstrap->all_gather = all_gather;
    code = read_layout(context->own, bootstrap);
    if (code == MPI_SUCCESS) return MESHRUN_OK;
    MPI_Comm_free(&context->own);
  }
  free(context);
  return failed(code, "the ranks of the communicator could not be read", error, error_bytes);
}

void meshrun_mpi_close(meshrun_bootstrap* bootstrap) {
  struct communicator* const context = bootstrap->context;
  if (context == NULL) return;
  MPI_Comm_free(&context->own);
  free(context);
  bootstrap->context = NULL;
}

int meshrun_initialize_mpi(MPI_Comm communicator) {
  meshrun_bootstrap bootstrap;
  char error[512];
  int code = meshrun_mpi_open(communicator, &bootstrap, error, sizeof(error));
  if (code != MESHRUN_OK) return meshrun_fail(code, error);
  code = meshrun_initialize_with(&bootstrap);
  meshrun_mpi_close(&bootstrap);
  return code;
}

int meshrun_initialize_mpi_f(MPI_Fint communicator) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  /* Outside MPI's life there is nothing to convert by; meshrun_mpi_open() says so. */
  return meshrun_initialize_mpi(initialized && !finalized ? MPI_Comm_f2c(communicator)
                                                          : MPI_COMM_NULL);
}
