! meshrun for Fortran: train and run networks inside a solver, on all of its ranks.
!
!   use meshrun
!   type(c_ptr) :: model
!   code = meshrun_initialize_mpi(MPI_COMM_WORLD)   ! mpi_f08: comm%MPI_VAL; or meshrun_initialize()
!   code = meshrun_model_create("fully_connected", '{"in_features": 3, "out_features": 1}', model)
!   code = meshrun_model_set_training(model, "mse", "adam", 1d-3)
!   code = meshrun_train_step(model, meshrun_array(x), meshrun_array(y), loss)    ! x(3, n), y(1, n)
!   if (code /= meshrun_ok) print *, meshrun_last_error()
!   code = meshrun_model_destroy(model)
!   code = meshrun_finalize()
!
! meshrun.h has the contract of every function: they have the same names here, and return its codes.
! Compile this file with your program's compiler, and link libmeshrun (docs/hpc.md).
!
! Arrays: meshrun_array(a) describes a, of real or integer with 32 or 64 bits and rank 0 to 7; it
! must be contiguous. Nothing is copied: the model sees the same memory with the dimensions
! reversed. a(nx, ny, channels, batch) is its tensor of [batch, channels, ny, nx], so Fortran's last
! index is the sample. The description is of use as long as a is: make it in the call, as above. An
! array whose description is kept must have the attribute target.
!
! Fortran 2018, for assumed rank: gfortran 9, ifx, nvfortran 24 and later.
module meshrun
  use, intrinsic :: iso_c_binding
  implicit none
  private

  integer(c_int), parameter, public :: meshrun_ok = 0, meshrun_invalid_argument = 1, &
    meshrun_invalid_state = 2, meshrun_not_supported = 3, meshrun_environment = 4, &
    meshrun_communication = 5, meshrun_file = 6, meshrun_model_error = 7, &
    meshrun_out_of_memory = 8, meshrun_internal = 9
  integer(c_int32_t), parameter, public :: meshrun_abi = 1
  integer(c_int32_t), parameter, public :: meshrun_float32 = 1, meshrun_float64 = 2, &
    meshrun_int32 = 3, meshrun_int64 = 4
  integer(c_int32_t), parameter, public :: meshrun_row_major = 0, meshrun_column_major = 1, &
    meshrun_strided = 2
  integer, parameter, public :: meshrun_max_dims = 8

  ! meshrun_array of meshrun.h. Its members may be set by hand: a leading part, strides.
  type, bind(c), public :: meshrun_array_t
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: dtype = 0
    integer(c_int32_t) :: dims = 0
    integer(c_int32_t) :: order = meshrun_column_major
    integer(c_int32_t) :: reserved = 0
    integer(c_int64_t) :: shape(meshrun_max_dims) = 0
    integer(c_int64_t) :: strides(meshrun_max_dims) = 0
  end type

  interface meshrun_array
    module procedure array_of_real32, array_of_real64, array_of_int32, array_of_int64
  end interface

  ! One input and one target (or output), or arrays of them.
  interface meshrun_train_step
    module procedure train_step_one, train_step_many
  end interface
  interface meshrun_infer
    module procedure infer_one, infer_many
  end interface

  public :: meshrun_array, meshrun_train_step, meshrun_infer
  public :: meshrun_last_error, meshrun_version, meshrun_model_create, meshrun_model_load_script, &
    meshrun_model_load_package, meshrun_model_set_training, meshrun_model_save, meshrun_model_load
  public :: meshrun_abi_version, meshrun_initialize, meshrun_initialize_mpi, meshrun_finalize, &
    meshrun_is_initialized, meshrun_rank, meshrun_world_size, meshrun_local_rank, &
    meshrun_local_world_size, meshrun_node_rank, meshrun_manual_seed, meshrun_model_destroy, &
    meshrun_model_set_dtype, meshrun_model_parameter_count, meshrun_model_set_learning_rate

  interface
    integer(c_int32_t) function meshrun_abi_version() bind(c)
      import
    end function
    integer(c_int) function meshrun_initialize() bind(c)
      import
    end function
    ! Of meshrun_mpi.h: only programs that call it link libmeshrun_mpi.
    integer(c_int) function meshrun_initialize_mpi(communicator) &
      bind(c, name="meshrun_initialize_mpi_f")
      import
      integer(c_int), value :: communicator
    end function
    integer(c_int) function meshrun_finalize() bind(c)
      import
    end function
    integer(c_int) function meshrun_is_initialized(initialized) bind(c)
      import
      integer(c_int32_t), intent(out) :: initialized
    end function
    integer(c_int) function meshrun_rank(rank) bind(c)
      import
      integer(c_int32_t), intent(out) :: rank
    end function
    integer(c_int) function meshrun_world_size(size) bind(c)
      import
      integer(c_int32_t), intent(out) :: size
    end function
    integer(c_int) function meshrun_local_rank(rank) bind(c)
      import
      integer(c_int32_t), intent(out) :: rank
    end function
    integer(c_int) function meshrun_local_world_size(size) bind(c)
      import
      integer(c_int32_t), intent(out) :: size
    end function
    integer(c_int) function meshrun_node_rank(node) bind(c)
      import
      integer(c_int32_t), intent(out) :: node
    end function
    integer(c_int) function meshrun_manual_seed(seed) bind(c)
      import
      integer(c_int64_t), value :: seed
    end function
    integer(c_int) function meshrun_model_destroy(model) bind(c)
      import
      type(c_ptr), value :: model
    end function
    integer(c_int) function meshrun_model_set_dtype(model, dtype) bind(c)
      import
      type(c_ptr), value :: model
      integer(c_int32_t), value :: dtype
    end function
    integer(c_int) function meshrun_model_parameter_count(model, count) bind(c)
      import
      type(c_ptr), value :: model
      integer(c_int64_t), intent(out) :: count
    end function
    integer(c_int) function meshrun_model_set_learning_rate(model, learning_rate) bind(c)
      import
      type(c_ptr), value :: model
      real(c_double), value :: learning_rate
    end function

    ! Texts, and what is optional, go through functions below.
    type(c_ptr) function c_last_error() bind(c, name="meshrun_last_error")
      import
    end function
    type(c_ptr) function c_version() bind(c, name="meshrun_version")
      import
    end function
    integer(c_size_t) function c_length(text) bind(c, name="strlen")
      import
      type(c_ptr), value :: text
    end function
    integer(c_int) function c_create(name, options, model) bind(c, name="meshrun_model_create")
      import
      character(kind=c_char), intent(in) :: name(*), options(*)
      type(c_ptr), intent(out) :: model
    end function
    integer(c_int) function c_load_script(path, model) bind(c, name="meshrun_model_load_script")
      import
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), intent(out) :: model
    end function
    integer(c_int) function c_load_package(path, model) bind(c, name="meshrun_model_load_package")
      import
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), intent(out) :: model
    end function
    integer(c_int) function c_set_training(model, loss, optimizer, learning_rate, options) &
      bind(c, name="meshrun_model_set_training")
      import
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: loss(*), optimizer(*), options(*)
      real(c_double), value :: learning_rate
    end function
    integer(c_int) function c_train_step(model, inputs, n_inputs, targets, n_targets, loss) &
      bind(c, name="meshrun_train_step")
      import
      type(c_ptr), value :: model
      type(meshrun_array_t), intent(in) :: inputs(*), targets(*)
      integer(c_int32_t), value :: n_inputs, n_targets
      real(c_double), intent(inout) :: loss
    end function
    integer(c_int) function c_infer(model, inputs, n_inputs, outputs, n_outputs) &
      bind(c, name="meshrun_infer")
      import
      type(c_ptr), value :: model
      type(meshrun_array_t), intent(in) :: inputs(*), outputs(*)
      integer(c_int32_t), value :: n_inputs, n_outputs
    end function
    integer(c_int) function c_save(model, directory, step) bind(c, name="meshrun_model_save")
      import
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: directory(*)
      integer(c_int64_t), value :: step
    end function
    integer(c_int) function c_load(model, directory, step) bind(c, name="meshrun_model_load")
      import
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: directory(*)
      integer(c_int64_t), intent(inout) :: step
    end function
  end interface

contains

  function meshrun_last_error() result(text)
    character(len=:), allocatable :: text
    text = text_at(c_last_error())
  end function

  function meshrun_version() result(text)
    character(len=:), allocatable :: text
    text = text_at(c_version())
  end function

  integer(c_int) function meshrun_model_create(name, options, model) result(code)
    character(len=*), intent(in) :: name, options
    type(c_ptr), intent(out) :: model
    code = c_create(name // c_null_char, options // c_null_char, model)
  end function

  integer(c_int) function meshrun_model_load_script(path, model) result(code)
    character(len=*), intent(in) :: path
    type(c_ptr), intent(out) :: model
    code = c_load_script(trim(path) // c_null_char, model)
  end function

  integer(c_int) function meshrun_model_load_package(path, model) result(code)
    character(len=*), intent(in) :: path
    type(c_ptr), intent(out) :: model
    code = c_load_package(trim(path) // c_null_char, model)
  end function

  integer(c_int) function meshrun_model_set_training(model, loss, optimizer, learning_rate, &
                                                     options) result(code)
    type(c_ptr), intent(in) :: model
    character(len=*), intent(in) :: loss, optimizer
    real(c_double), intent(in) :: learning_rate
    character(len=*), intent(in), optional :: options
    if (present(options)) then
      code = c_set_training(model, loss // c_null_char, optimizer // c_null_char, learning_rate, &
                            options // c_null_char)
    else
      code = c_set_training(model, loss // c_null_char, optimizer // c_null_char, learning_rate, &
                            c_null_char)
    end if
  end function

  integer(c_int) function meshrun_model_save(model, directory, step) result(code)
    type(c_ptr), intent(in) :: model
    character(len=*), intent(in) :: directory
    integer(c_int64_t), intent(in) :: step
    code = c_save(model, trim(directory) // c_null_char, step)
  end function

  integer(c_int) function meshrun_model_load(model, directory, step) result(code)
    type(c_ptr), intent(in) :: model
    character(len=*), intent(in) :: directory
    integer(c_int64_t), intent(inout) :: step
    code = c_load(model, trim(directory) // c_null_char, step)
  end function

  integer(c_int) function train_step_one(model, input, target, loss) result(code)
    type(c_ptr), intent(in) :: model
    type(meshrun_array_t), intent(in) :: input, target
    real(c_double), intent(inout) :: loss
    code = c_train_step(model, [input], 1_c_int32_t, [target], 1_c_int32_t, loss)
  end function

  integer(c_int) function train_step_many(model, inputs, targets, loss) result(code)
    type(c_ptr), intent(in) :: model
    type(meshrun_array_t), intent(in) :: inputs(:), targets(:)
    real(c_double), intent(inout) :: loss
    code = c_train_step(model, inputs, size(inputs, kind=c_int32_t), targets, &
                        size(targets, kind=c_int32_t), loss)
  end function

  integer(c_int) function infer_one(model, input, output) result(code)
    type(c_ptr), intent(in) :: model
    type(meshrun_array_t), intent(in) :: input, output
    code = c_infer(model, [input], 1_c_int32_t, [output], 1_c_int32_t)
  end function

  integer(c_int) function infer_many(model, inputs, outputs) result(code)
    type(c_ptr), intent(in) :: model
    type(meshrun_array_t), intent(in) :: inputs(:), outputs(:)
    code = c_infer(model, inputs, size(inputs, kind=c_int32_t), outputs, &
                   size(outputs, kind=c_int32_t))
  end function

  function array_of_real32(a) result(array)
    real(c_float), intent(in), target :: a(..)
    type(meshrun_array_t) :: array
    array = array_at(c_loc(a), meshrun_float32, shape(a, kind=c_int64_t), is_contiguous(a))
  end function

  function array_of_real64(a) result(array)
    real(c_double), intent(in), target :: a(..)
    type(meshrun_array_t) :: array
    array = array_at(c_loc(a), meshrun_float64, shape(a, kind=c_int64_t), is_contiguous(a))
  end function

  function array_of_int32(a) result(array)
    integer(c_int32_t), intent(in), target :: a(..)
    type(meshrun_array_t) :: array
    array = array_at(c_loc(a), meshrun_int32, shape(a, kind=c_int64_t), is_contiguous(a))
  end function

  function array_of_int64(a) result(array)
    integer(c_int64_t), intent(in), target :: a(..)
    type(meshrun_array_t) :: array
    array = array_at(c_loc(a), meshrun_int64, shape(a, kind=c_int64_t), is_contiguous(a))
  end function

  ! An array with gaps gets a null pointer: the call that takes it then refuses it, with its name.
  function array_at(address, dtype, extents, contiguous) result(array)
    type(c_ptr), intent(in) :: address
    integer(c_int32_t), intent(in) :: dtype
    integer(c_int64_t), intent(in) :: extents(:)
    logical, intent(in) :: contiguous
    type(meshrun_array_t) :: array
    array%dtype = dtype
    array%dims = size(extents, kind=c_int32_t)
    array%shape(:size(extents)) = extents
    if (contiguous) array%data = address
  end function

  function text_at(address) result(text)
    type(c_ptr), intent(in) :: address
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    call c_f_pointer(address, letters, [c_length(address)])
    allocate(character(len=size(letters)) :: text)
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function

end module
