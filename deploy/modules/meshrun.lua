-- Lmod's module of an unpacked tarball. The file's own name is the version: meshrun/@VERSION@.lua.
local version = myModuleVersion()
local root = "@PREFIX@"

help([[
meshrun: distributed scientific machine-learning training in C++ and Python.

  meshrun run --nproc-per-node gpu train.py                                      on this host
  srun meshrun run --nnodes $SLURM_NNODES --nproc-per-node gpu train.py          on all nodes of a Slurm job, a task on each
  meshrun doctor                                                                 what this host has

The jobs that ship with meshrun, and programs that are linked with it, need LibTorch @LIBTORCH@: in LIBTORCH_HOME, else in
$MESHRUN_ROOT/libtorch, else in the torch that python3 imports.

  cc solver.c $(pkg-config --cflags --libs meshrun-c) -o solver                  C; docs/hpc.md has C++, Fortran, MPI and CMake
  mpirun $MESHRUN_ROOT/env ./solver
]])
whatis("Name: meshrun")
whatis("Version: " .. version)
whatis("Description: launcher, coordinator and workers for distributed training")

conflict("meshrun")
if mode() == "load" and not isFile(pathJoin(root, "bin", "meshrun")) then
  LmodError("meshrun " .. version .. " is not in " .. root .. ": unpack the release's tarball there, or name its directory in "
            .. myFileName())
end
prepend_path("PATH", pathJoin(root, "bin"))
-- lib holds libraries for programs to link with, and none that another program could load by mistake.
prepend_path("CPATH", pathJoin(root, "include", "meshrun"))
prepend_path("LIBRARY_PATH", pathJoin(root, "lib"))
prepend_path("PKG_CONFIG_PATH", pathJoin(root, "lib", "pkgconfig"))
prepend_path("CMAKE_PREFIX_PATH", root)
setenv("MESHRUN_ROOT", root)
