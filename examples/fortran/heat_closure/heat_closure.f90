! A heat solver that trains a closure while it runs, and then runs with it.
!
!   mpirun -n 2 heat_closure [TRAINING_STEPS]
!
! The rod is a ring of cells, cut over the ranks of MPI; each rank exchanges the cells at its ends with
! its neighbours by MPI, in every step. The solver knows a constant conductivity. The real one depends
! on the temperature, 1 + u**2 / 2, and costs more; a network learns the difference from three
! neighbouring cells, on all ranks together, while the solver runs with the real one. Then the solver
! runs with the network in its place, and without, and says how far each is from the real rod.
program heat_closure
  use, intrinsic :: iso_c_binding
  use mpi
  use meshrun
  implicit none

  integer, parameter :: cells = 64             ! of each rank
  integer, parameter :: wave = 32, restart = 60, test_steps = 60
  real(c_float), parameter :: rate = 0.1       ! dt / dx**2
  real(c_float), parameter :: scale = 200      ! of the tendency that the network gives
  real(c_float), target :: u(0:cells + 1), linear(0:cells + 1), learnt(0:cells + 1)
  ! A sample is a column: Fortran's last index.
  real(c_float), target :: stencil(3, cells), closure(1, cells)
  type(c_ptr) :: model
  real(c_double) :: loss
  integer :: rank, ranks, error, step, steps

  call MPI_Init(error)
  call check(meshrun_initialize_mpi(MPI_COMM_WORLD))
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  steps = steps_asked_for()

  call check(meshrun_manual_seed(1_c_int64_t))
  call check(meshrun_model_create("fully_connected", '{"in_features": 3, "out_features": 1, ' // &
    '"layer_size": 32, "num_layers": 2, "activation_fn": ["tanh"]}', model))
  call check(meshrun_model_set_training(model, "mse", "adam", 3d-3))

  loss = 0
  do step = 0, steps - 1
    ! Rods of other temperatures, so that the closure is not of one rod alone.
    if (mod(step, restart) == 0) call start(u, 0.4 + 0.2 * real(mod(step / restart, 4)), step)
    call exchange(u)
    call read_stencil(u)
    closure(1, :) = scale * (real_tendency(u) - linear_tendency(u))
    if (step > steps / 2) call check(meshrun_model_set_learning_rate(model, 1d-3))
    call check(meshrun_train_step(model, meshrun_array(stencil), meshrun_array(closure), loss))
    u(1:cells) = u(1:cells) + real_tendency(u)
  end do
  if (rank == 0) print '(a, i0, a, i0, a, es9.2)', "heat_closure: ", steps, " steps on ", ranks, &
    " rank(s), last loss ", loss

  ! A rod that was not trained on.
  call start(u, 0.9, 11)
  linear = u
  learnt = u
  do step = 1, test_steps
    call exchange(u)
    call exchange(linear)
    call exchange(learnt)
    call read_stencil(learnt)
    call check(meshrun_infer(model, meshrun_array(stencil), meshrun_array(closure)))
    learnt(1:cells) = learnt(1:cells) + linear_tendency(learnt) + closure(1, :) / scale
    linear(1:cells) = linear(1:cells) + linear_tendency(linear)
    u(1:cells) = u(1:cells) + real_tendency(u)
  end do
  call report("without the closure", linear)
  call report("with the closure", learnt)

  call check(meshrun_model_destroy(model))
  ! In either order.
  call MPI_Finalize(error)
  call check(meshrun_finalize())

contains

  subroutine check(code)
    integer(c_int), intent(in) :: code
    if (code == meshrun_ok) return
    print '(a, i0, 2a)', "meshrun error ", code, ": ", meshrun_last_error()
    error stop 1
  end subroutine

  integer function steps_asked_for() result(count)
    character(len=20) :: text
    count = 1200
    if (command_argument_count() == 0) return
    call get_command_argument(1, text)
    read (text, *) count
  end function

  subroutine start(state, amplitude, phase)
    real(c_float), intent(out) :: state(0:)
    real, intent(in) :: amplitude
    integer, intent(in) :: phase
    integer :: i
    do i = 1, cells
      state(i) = amplitude * sin(2 * 3.14159265 * (rank * cells + i + phase) / wave)
    end do
  end subroutine

  ! The cells beyond both ends, from the neighbours on the ring.
  subroutine exchange(state)
    real(c_float), intent(inout) :: state(0:)
    integer :: left, right
    left = modulo(rank - 1, ranks)
    right = modulo(rank + 1, ranks)
    call MPI_Sendrecv(state(cells), 1, MPI_REAL, right, 0, state(0), 1, MPI_REAL, left, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    call MPI_Sendrecv(state(1), 1, MPI_REAL, left, 1, state(cells + 1), 1, MPI_REAL, right, 1, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
  end subroutine

  subroutine read_stencil(state)
    real(c_float), intent(in) :: state(0:)
    stencil(1, :) = state(0:cells - 1)
    stencil(2, :) = state(1:cells)
    stencil(3, :) = state(2:cells + 1)
  end subroutine

  function linear_tendency(state) result(tendency)
    real(c_float), intent(in) :: state(0:)
    real(c_float) :: tendency(cells)
    tendency = rate * (state(0:cells - 1) - 2 * state(1:cells) + state(2:cells + 1))
  end function

  function real_tendency(state) result(tendency)
    real(c_float), intent(in) :: state(0:)
    real(c_float) :: tendency(cells), flux(0:cells)
    flux = (1 + ((state(0:cells) + state(1:cells + 1)) / 2)**2 / 2) * &
           (state(1:cells + 1) - state(0:cells))
    tendency = rate * (flux(1:cells) - flux(0:cells - 1))
  end function

  ! Relative to the real rod, over all ranks.
  subroutine report(what, state)
    character(len=*), intent(in) :: what
    real(c_float), intent(in) :: state(0:)
    real :: own(2), all(2)
    own = [sum((state(1:cells) - u(1:cells))**2), sum(u(1:cells)**2)]
    call MPI_Reduce(own, all, 2, MPI_REAL, MPI_SUM, 0, MPI_COMM_WORLD, error)
    if (rank == 0) print '(3a, f7.4)', "error ", what, ": ", sqrt(all(1) / all(2))
  end subroutine

end program
