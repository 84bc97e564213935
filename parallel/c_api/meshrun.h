/* meshrun for C, and for what calls C: train and run networks inside a solver, on all of its ranks.
 *
 *   meshrun_model* model;
 *   meshrun_initialize();                                   // or meshrun_initialize_mpi(comm)
 *   meshrun_model_create("fully_connected", "{\"in_features\": 3, \"out_features\": 1}", &model);
 *   meshrun_model_set_training(model, "mse", "adam", 1e-3, NULL);
 *   meshrun_array x = {.data = field, .dtype = MESHRUN_FLOAT32, .dims = 2, .shape = {cells, 3}};
 *   meshrun_array y = {.data = wanted, .dtype = MESHRUN_FLOAT32, .dims = 2, .shape = {cells, 1}};
 *   double loss;
 *   if (meshrun_train_step(model, &x, 1, &y, 1, &loss)) puts(meshrun_last_error());
 *   meshrun_model_destroy(model);
 *   meshrun_finalize();
 *
 * Errors: every function returns MESHRUN_OK, 0, or another of the codes below; meshrun_last_error()
 * then has a sentence that names the values. No C++ exception leaves a function. What a function
 * writes through a pointer is written only with MESHRUN_OK.
 *
 * "Collective": all ranks call it, in the same order. What one rank finds wrong, all ranks report;
 * the others name the rank.
 *
 * Threads: any, one call at a time. Traps for floating-point exceptions (gfortran -ffpe-trap) are
 * off inside a call, and back after it.
 *
 * Versions: MESHRUN_ABI_VERSION changes if a program has to be compiled again. A program compares
 * it with meshrun_abi_version(), that of the library it runs with.
 *
 * docs/hpc.md has compile lines. C99 or C++.
 */
#ifndef MESHRUN_H_
#define MESHRUN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MESHRUN_ABI_VERSION 1

#define MESHRUN_API __attribute__((visibility("default")))

/* Codes. */
enum {
  MESHRUN_OK = 0,
  MESHRUN_INVALID_ARGUMENT = 1, /* a null pointer, a shape, a dtype, a name, a destroyed handle */
  MESHRUN_INVALID_STATE = 2,    /* not initialised, or no longer; no training was set */
  MESHRUN_NOT_SUPPORTED = 3,    /* this model cannot do it */
  MESHRUN_ENVIRONMENT = 4,      /* the launcher's variables or MPI's state */
  MESHRUN_COMMUNICATION = 5,    /* the ranks did not meet, or one is lost */
  MESHRUN_FILE = 6,             /* missing, damaged, or of another model */
  MESHRUN_MODEL = 7,            /* the model itself failed; the text is LibTorch's */
  MESHRUN_OUT_OF_MEMORY = 8,
  MESHRUN_INTERNAL = 9
};

MESHRUN_API int32_t meshrun_abi_version(void);
/* "0.2.0" */
MESHRUN_API const char* meshrun_version(void);
/* Why the last call of this thread that failed did so; valid until the next call of this thread. */
MESHRUN_API const char* meshrun_last_error(void);
/* For libraries above this one: keeps `text` for meshrun_last_error(), and returns `code`. */
MESHRUN_API int meshrun_fail(int code, const char* text);

/* The world. One at a time; after meshrun_finalize() there may be another. Collective. */

/* Joins the ranks that the launcher (meshrun run, torchrun, mpirun, srun) has started, as its
 * environment says; without one, a world of one rank. A second call changes nothing. */
MESHRUN_API int meshrun_initialize(void);

/* What another library knows of ranks that it has brought together. meshrun_mpi.h makes it of an
 * MPI communicator. */
typedef struct meshrun_bootstrap {
  const char* method; /* "MPI", for messages */
  int32_t rank, world_size;
  /* Among the ranks that share this host's memory; hosts numbered from 0 by their first ranks. */
  int32_t local_rank, local_world_size, node_rank;
  void* context;
  /* Collective. Zero, or another number after a sentence was written to `error` with its end. */
  int (*broadcast)(void* context, void* data, size_t bytes, char* error, size_t error_bytes);
  int (*all_gather)(void* context, const void* own, void* all, size_t bytes, char* error,
                    size_t error_bytes);
} meshrun_bootstrap;

/* Joins these ranks. Uses the functions until it returns, and not afterwards. If all are in the
 * world of these ranks already, in this order, it changes nothing; ranks in another world are an
 * error. */
MESHRUN_API int meshrun_initialize_with(const meshrun_bootstrap* bootstrap);

/* Leaves. Models stay until they are destroyed, and do nothing any more. Without a world it does
 * nothing. */
MESHRUN_API int meshrun_finalize(void);

/* Not collective. */
MESHRUN_API int meshrun_is_initialized(int32_t* initialized);
MESHRUN_API int meshrun_rank(int32_t* rank);
MESHRUN_API int meshrun_world_size(int32_t* size);
MESHRUN_API int meshrun_local_rank(int32_t* rank);
MESHRUN_API int meshrun_local_world_size(int32_t* size);
MESHRUN_API int meshrun_node_rank(int32_t* node);
/* Of LibTorch's random numbers in this process: initial weights, dropout. */
MESHRUN_API int meshrun_manual_seed(uint64_t seed);

/* Arrays of the caller. */

enum { MESHRUN_FLOAT32 = 1, MESHRUN_FLOAT64 = 2, MESHRUN_INT32 = 3, MESHRUN_INT64 = 4 };
enum {
  /* C: the last index runs fastest; the model sees `shape`. */
  MESHRUN_ROW_MAJOR = 0,
  /* Fortran: the first index runs fastest. The model sees the dimensions reversed, which moves
   * nothing: a(nx, ny, channels, batch) is its tensor of [batch, channels, ny, nx]. */
  MESHRUN_COLUMN_MAJOR = 1,
  /* The model sees `shape`; `strides` say, in elements, how far apart neighbours are. */
  MESHRUN_STRIDED = 2
};
#define MESHRUN_MAX_DIMS 8

/* Memory of this host. It is used where it is, during the call alone; on a GPU LibTorch copies it
 * there and back. Empty arrays (an extent of 0) are allowed, with data null. */
typedef struct meshrun_array {
  void* data;
  int32_t dtype;
  int32_t dims; /* 0 to MESHRUN_MAX_DIMS */
  int32_t order;
  int32_t reserved; /* 0 */
  int64_t shape[MESHRUN_MAX_DIMS];
  int64_t strides[MESHRUN_MAX_DIMS]; /* with MESHRUN_STRIDED */
} meshrun_array;

/* Models. Their memory is freed by meshrun_model_destroy(). Not collective, but for the functions
 * that say so; a model needs a world, which may be of one rank. */

typedef struct meshrun_model meshrun_model;

/* A network that ships with meshrun, with random weights: "fully_connected", "fno", "afno", "unet"
 * or "vision_transformer". `options`: a JSON object of the network's options by the names in
 * docs/hpc.md; null or "": its defaults. Parameters are float32. */
MESHRUN_API int meshrun_model_create(const char* name, const char* options, meshrun_model** model);
/* A TorchScript file, as torch.jit.save writes it. Its forward() takes tensors, and returns one or
 * a tuple of them. */
MESHRUN_API int meshrun_model_load_script(const char* path, meshrun_model** model);
/* A package of AOTInductor (.pt2, torch._inductor.aoti_compile_and_package). It infers, for the
 * shapes that it was compiled for, and does not train. */
MESHRUN_API int meshrun_model_load_package(const char* path, meshrun_model** model);
MESHRUN_API int meshrun_model_destroy(meshrun_model* model);

/* Converts the parameters: MESHRUN_FLOAT32 or MESHRUN_FLOAT64. Before meshrun_model_set_training().
 */
MESHRUN_API int meshrun_model_set_dtype(meshrun_model* model, int32_t dtype);
MESHRUN_API int meshrun_model_parameter_count(meshrun_model* model, int64_t* count);

/* outputs = model(inputs), without gradients: in eval mode, on this rank alone. The arrays of
 * `outputs` have the shapes that the model returns. */
MESHRUN_API int meshrun_infer(meshrun_model* model, const meshrun_array* inputs, int32_t n_inputs,
                              const meshrun_array* outputs, int32_t n_outputs);

/* Collective. All ranks get rank 0's parameters. Once a model. What ranks give differently is an
 * error. A parameter of several names (tied weights) is one.
 *   loss       "mse", "l1", "smooth_l1" or "cross_entropy" (int64 classes as targets; -100 is
 *              left out)
 *   optimizer  "adam", "adamw" or "sgd"
 *   options    a JSON object of PyTorch's names: weight_decay, betas, eps, amsgrad; momentum,
 *              dampening, nesterov; and clip_grad_norm, find_unused_parameters (true: parameters may
 *              get no gradient in a step; false: that is an error). Null or "": the defaults of
 *              PyTorch */
MESHRUN_API int meshrun_model_set_training(meshrun_model* model, const char* loss,
                                           const char* optimizer, double learning_rate,
                                           const char* options);
/* Not collective; the next step compares the ranks' rates. */
MESHRUN_API int meshrun_model_set_learning_rate(meshrun_model* model, double learning_rate);

/* Collective. One step of the optimizer. Each rank brings its own share of the batch, and the step
 * is that of one rank with all shares: the loss of an output is the sum of its terms on all ranks,
 * divided by their number (elements of the target, or classes that are not left out). Several
 * outputs: their losses are added. `loss`: the loss before the step; may be null.
 *
 * Shares may differ in size. One may be empty, if the model takes an empty batch; all of them empty
 * is an error. Normalisation over a batch sees the rank's share alone. Ranks that step different
 * models, or with different learning rates, get an error, and nothing is changed. */
MESHRUN_API int meshrun_train_step(meshrun_model* model, const meshrun_array* inputs,
                                   int32_t n_inputs, const meshrun_array* targets,
                                   int32_t n_targets, double* loss);

/* Collective. A checkpoint of model and optimizer in `directory`, which any number of ranks reads
 * (docs/checkpoints.md). The newest two stay. After meshrun_model_set_training. */
MESHRUN_API int meshrun_model_save(meshrun_model* model, const char* directory, int64_t step);
/* Collective. The newest one; `step` is -1 if there is none, and the model as before. */
MESHRUN_API int meshrun_model_load(meshrun_model* model, const char* directory, int64_t* step);

#ifdef __cplusplus
}
#endif

#endif /* MESHRUN_H_ */
