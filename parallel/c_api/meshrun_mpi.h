/* meshrun on the ranks of an MPI communicator.
 *
 *   MPI_Init(&argc, &argv);
 *   meshrun_initialize_mpi(MPI_COMM_WORLD);      // or a part of it: the world is the communicator
 *   ...                                          // meshrun.h
 *   meshrun_finalize();                          // before or after MPI_Finalize()
 *   MPI_Finalize();
 *
 * MPI's libraries have no common ABI. These functions are in a library for each of them:
 * libmeshrun_mpi_openmpi.a and libmeshrun_mpi_mpich.a, which come with meshrun, or meshrun_mpi.c,
 * compiled with the mpicc of another MPI. docs/hpc.md has the lines.
 *
 * meshrun uses MPI until meshrun_initialize_mpi() returns, on a duplicate of the communicator, and
 * not afterwards; its own traffic is apart from MPI's. Any thread level will do: with
 * MPI_THREAD_SINGLE or _FUNNELED MPI's main thread makes the call.
 *
 * Errors: MESHRUN_ENVIRONMENT if MPI is not initialised or is finalised, for MPI_COMM_NULL, an
 * intercommunicator, or a thread that may not call MPI; else as meshrun_initialize_with().
 */
#ifndef MESHRUN_MPI_H_
#define MESHRUN_MPI_H_

#include <mpi.h>

#include "meshrun.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over `communicator`. */
MESHRUN_API int meshrun_initialize_mpi(MPI_Comm communicator);
/* As Fortran has it: an INTEGER, or the MPI_VAL of a TYPE(MPI_Comm). */
MESHRUN_API int meshrun_initialize_mpi_f(MPI_Fint communicator);

/* For callers of meshrun_initialize_with(), C++ among them: what `communicator` knows. Collective.
 * 0, or MESHRUN_ENVIRONMENT or MESHRUN_COMMUNICATION and a sentence in `error`. A bootstrap that
 * was opened is closed, by all ranks. */
MESHRUN_API int meshrun_mpi_open(MPI_Comm communicator, meshrun_bootstrap* bootstrap, char* error,
                                 size_t error_bytes);
MESHRUN_API void meshrun_mpi_close(meshrun_bootstrap* bootstrap);

#ifdef __cplusplus
}
#endif

#endif /* MESHRUN_MPI_H_ */
