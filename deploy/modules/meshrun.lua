-- Lmod's module of an unpacked tarball. The file's own name is the version: meshrun/@VERSION@.lua.
local version = myModuleVersion()
local root = "@PREFIX@"

help([[
meshrun: distributed scientific machine-learning training in C++ and Python.

  meshrun run --nproc-per-node gpu train.py                                      on this host
  srun meshrun run --nnodes $SLURM_NNODES --nproc-per-node gpu train.py          on all nodes of a Slurm job, a task on each
  meshrun doctor                                                                 what this host has

The jobs that ship with meshrun need LibTorch @LIBTORCH@: in LIBTORCH_HOME, else in the torch that python3 imports.
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
setenv("MESHRUN_ROOT", root)
