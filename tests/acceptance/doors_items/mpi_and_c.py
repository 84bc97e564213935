"""Item 6: ranks of Open MPI and of MPICH, as launched and as a communicator; the C and Fortran examples, in valgrind too; OpenFOAM."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import sys

from doors_items import openfoam
from harness import ROOT, check, passed, skip_soak

sys.path.insert(0, str(ROOT / "tests/launchers"))
from launching import Failed, by_meshrun, by_mpich, by_mpirun, clean_environment, observe

HERE = pathlib.Path(__file__).resolve().parent
MPIS = {"openmpi": "Open MPI", "mpich": "MPICH"}
C = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror"]
# LibTorch's vector code for AVX-512 is beyond valgrind 3.19.
IN_VALGRIND = {"ATEN_CPU_CAPABILITY": "default", "MKL_NUM_THREADS": "1"}
# What MPI's libraries lose by themselves: MPICH's hwloc does in MPI_Init.
OF_MPI = re.compile(r"libmpi|libopen-|libhwloc|libpmix")


class Tools:
    """Compilers with the flags of an installed meshrun."""

    def __init__(self, site):
        self.site = site
        self.prefix = site.directory / "prefix"
        self.must([ROOT / "deploy/install", "--prefix", self.prefix, "--only", "library"], "deploy/install", 3600)

    def must(self, command, what, timeout=120, env=None):
        code, out, err, _ = self.site.run(command, timeout, env)
        check(code == 0, f"{what}: exit code {code}: {' | '.join((out + err).splitlines()[-6:])}")
        return out + err

    def flags(self, *packages):
        env = {"PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}
        return self.must(["pkg-config", "--cflags", "--libs", *packages], "pkg-config", env=env).split()

    def compile(self, name, compiler, sources, flags, packages, timeout=120):
        program = self.site.directory / name
        self.must([compiler, *flags, *sources, *self.flags(*packages), "-lm", "-o", program], f"{compiler} for {name}", timeout)
        return program


def mpirun(mpi, ranks):
    """Both by UCX: Debian's MPICH has nothing else, and Open MPI takes it without RDMA where it is told to."""
    flags = []
    if mpi == "openmpi":
        flags = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        flags += ["--oversubscribe", "--bind-to", "none"]
        for name, value in (("pml", "ucx"), ("opal_common_ucx_tls", "any"), ("opal_common_ucx_devices", "any")):
            flags += ["--mca", name, value]
    return [f"mpirun.{mpi}", *flags, "-n", ranks]


def runs(tools, command, what, timeout=120, env=None):
    return tools.must(["env", "-i", *(f"{name}={value}" for name, value in clean_environment(**(env or {})).items()), *command], what,
                      timeout)


def same_as_launched():
    """ddp_recipe: ranks and result under each launcher."""
    outcomes = {}
    for name, launcher in (("meshrun run", by_meshrun), ("Open MPI", by_mpirun), ("MPICH", by_mpich)):
        try:
            outcomes[name] = observe(launcher, 2)
        except Failed as error:
            check(False, f"ddp_recipe under {name}: {error}")
    reference = outcomes["meshrun run"]
    for name, outcome in outcomes.items():
        check(outcome == reference, f"ddp_recipe under {name} says {outcome}, and under meshrun run {reference}")
    return f"ddp_recipe is the same under {', '.join(outcomes)}: {reference.result}"


def places(said):
    return sorted(re.findall(r"rank \d+ of \d+, local rank \d+ of \d+, node \d+", said))


def places_on_one_host(ranks):
    return [f"rank {rank} of {ranks}, local rank {rank} of {ranks}, node 0" for rank in range(ranks)]


def losses(said):
    return re.findall(r"trained \d+ steps on \d+ ranks: loss (\S+)", said)


def by_communicator(tools):
    results = {}
    for mpi, name in MPIS.items():
        program = tools.compile(f"mpi_rank_{mpi}", f"mpicc.{mpi}", [HERE / "mpi_rank.c"], C, [f"meshrun-mpi-{mpi}"])
        said = runs(tools, [*mpirun(mpi, 2), program, "whole", "before"], f"{name}, meshrun ends first")
        check(places(said) == places_on_one_host(2), f"{name}: {said}")
        again = runs(tools, [*mpirun(mpi, 2), program, "whole", "after"], f"{name}, MPI ends first")
        part = runs(tools, [*mpirun(mpi, 4), program, "part"], f"{name}, three of four ranks")
        check(places(part) == places_on_one_host(3), f"{name}, three of four ranks: {part}")
        results[name] = losses(said) + losses(again) + losses(part)
        heard = re.search(r"computed beside it: .*, done, heard loss (\S+)", part)
        check(heard and heard[1] == results[name][-1], f"{name}, the rank that does not train: {part}")
        refused = runs(tools, [*mpirun(mpi, 1), program, "errors"], f"{name}, errors")
        for words in ("refused 4: MPI is not initialised", "refused 4: the communicator is MPI_COMM_NULL",
                      "rank 0 of 1, local rank 0 of 1, node 0", "refused 4: MPI is finalised"):
            check(words in refused, f"{name}: does not say '{words}': {refused}")
    # MPICH plays two hosts: ranks 0 and 2, and rank 1. These meet at an address, not on the loopback.
    said = runs(tools, [*mpirun("mpich", 3), tools.site.directory / "mpi_rank_mpich", "whole", "before"], "two hosts",
                env={"MPIR_CVAR_NUM_CLIQUES": "2"})
    check(places(said) == ["rank 0 of 3, local rank 0 of 2, node 0", "rank 1 of 3, local rank 0 of 1, node 1",
                           "rank 2 of 3, local rank 1 of 2, node 0"] and losses(said) == results["MPICH"][:1], f"two hosts: {said}")
    values = {value for found in results.values() for value in found}
    check(all(len(found) == 3 for found in results.values()) and len(values) == 1, f"losses by communicator: {results}")
    return f"2 ranks of a communicator, 3 of 4, and 3 on two hosts, of {' and '.join(MPIS.values())}: loss {values.pop()}"


def heat_closure(tools, mpi, steps, ranks):
    module = tools.prefix / "include/meshrun/meshrun.f90"
    source = ROOT / "examples/fortran/heat_closure/heat_closure.f90"
    program = tools.compile(f"heat_closure_{mpi}", f"mpifort.{mpi}", [module, source], ["-O2"], [f"meshrun-mpi-{mpi}"])
    said = runs(tools, [*mpirun(mpi, ranks), program, steps], f"heat_closure, {MPIS[mpi]}")
    errors = [float(value) for value in re.findall(r"error with(?:out)? the closure: +(\S+)", said)]
    check(len(errors) == 2 and errors[1] < errors[0] / 3, f"heat_closure, {MPIS[mpi]}: {said}")
    return program, f"the closure takes the heat solver's error from {errors[0]} to {errors[1]}"


def leaks(tools, program, arguments):
    """Runs it in valgrind, alone; checks that nothing is definitely lost."""
    log = tools.site.directory / f"{program.name}-valgrind.%p"
    valgrind = ["valgrind", "--leak-check=full", "--show-leak-kinds=definite", "--num-callers=40", f"--log-file={log}"]
    runs(tools, [*valgrind, program, *arguments], f"{program.name} in valgrind", 1200, IN_VALGRIND)
    logs = list(tools.site.directory.glob(f"{program.name}-valgrind.*"))
    check(logs, f"{program.name}: valgrind wrote no log")
    for path in logs:
        for record in re.findall(r"== \n==\d+== [\d,]+ (?:\([^)]*\) )?bytes.*definitely lost.*\n((?:==\d+==    .*\n)+)", path.read_text()):
            is_of_mpi = OF_MPI.search(record) and "libmeshrun" not in record
            check(is_of_mpi, f"{program.name} loses memory: {record}")


def in_valgrind(tools, heat):
    train = tools.compile("train", "cc", [ROOT / "examples/c/train.c"], C, ["meshrun-c"])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda program: leaks(tools, program, [3]), (train, heat)))
    return "no definite leak in the C and Fortran examples"


def in_cpp(tools):
    for mpi, name in MPIS.items():
        program = tools.compile(f"mpi_manager_{mpi}", f"mpicxx.{mpi}", [HERE / "mpi_manager.cc"], ["-O1"],
                                [f"meshrun-mpi-{mpi}", "meshrun"], 600)
        said = runs(tools, [*mpirun(mpi, 2), program], f"mpi_manager, {name}")
        check(said.count("refused: MPI is not initialised") == 2, f"mpi_manager, {name}: {said}")
        for rank in (0, 1):
            check(f"MPI: rank {rank} is {1 - rank} of 2 on gloo, sum 3" in said, f"mpi_manager, {name}: {said}")
    return "DistributedManager::initialize(MPI_Comm) in C++"


def by_cmake(tools):
    """A project in C and Fortran, with the components of the CMake package."""
    project = tools.site.directory / "by_cmake"
    project.mkdir()
    shutil.copy(ROOT / "examples/c/train.c", project)
    shutil.copy(ROOT / "examples/fortran/heat_closure/heat_closure.f90", project)
    (project / "CMakeLists.txt").write_text("""cmake_minimum_required(VERSION 3.20)
project(solver C Fortran)
find_package(meshrun REQUIRED COMPONENTS c mpi fortran)
find_package(MPI REQUIRED COMPONENTS Fortran)
add_executable(train train.c)
target_compile_definitions(train PRIVATE WITH_MPI)
target_link_libraries(train PRIVATE meshrun::mpi m)
add_executable(heat_closure heat_closure.f90)
target_link_libraries(heat_closure PRIVATE meshrun::fortran meshrun::mpi MPI::MPI_Fortran)
""")
    for mpi in MPIS:
        build = project / mpi
        tools.must(["cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={tools.prefix}", f"-DMPI_C_COMPILER=mpicc.{mpi}",
                    f"-DMPI_Fortran_COMPILER=mpifort.{mpi}"], "cmake")
        tools.must(["cmake", "--build", build], "cmake --build")
        said = runs(tools, [*mpirun(mpi, 2), build / "train", 5], "train by CMake")
        check("train: 5 steps on 2 rank(s)" in said, f"train by CMake: {said}")
        said = runs(tools, [*mpirun(mpi, 2), build / "heat_closure", 5], "heat_closure by CMake")
        check("heat_closure: 5 steps on 2 rank(s)" in said, f"heat_closure by CMake: {said}")
    return "CMake's components c, mpi and fortran"


def run(site):
    figures = [same_as_launched()]
    tools = Tools(site)
    figures.append(by_communicator(tools))
    heat, said = heat_closure(tools, "mpich", 1200, 2)
    figures.append(said)
    figures.append(in_valgrind(tools, heat))
    if skip_soak():
        return passed("; ".join(figures), "Fortran with Open MPI, C++, CMake, OpenFOAM")
    heat_closure(tools, "openmpi", 1200, 3)
    figures += [in_cpp(tools), by_cmake(tools)]
    try:
        figures.append(openfoam.run(tools, mpirun))
    except openfoam.Missing as missing:
        figures.append(f"OpenFOAM: n/a, {missing}")
    return passed("; ".join(figures))
