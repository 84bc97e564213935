"""Item 6, in soak: examples/openfoam in Debian's OpenFOAM, two ranks of simpleFoam on the tutorial pitzDaily. Debian packs programs,
libraries and tutorials; the headers come from its source package. All of it lies in the site's directory."""

import os
import re
import shutil

from harness import ROOT, check

PACKAGES = ["libopenfoam", "openfoam", "openfoam-examples", "libptscotch-7.0", "libscotch-7.0"]
HEADERS = ["OpenFOAM", "OSspecific/POSIX", "finiteVolume", "meshTools"]
TUTORIAL = "usr/share/doc/openfoam-examples/examples/incompressible/simpleFoam/pitzDaily"
ITERATIONS = 60
FUNCTIONS = """functions
{
    learn { type closureLearner; libs ("libclosure_learner.so"); steps 10; writeControl writeTime; }
}
"""
DECOMPOSITION = """FoamFile { version 2.0; format ascii; class dictionary; object decomposeParDict; }
numberOfSubdomains 2;
method simple;
simpleCoeffs { n (2 1 1); delta 0.001; }
"""


class Missing(Exception):
    """Why OpenFOAM is not to be had here."""


def fetch(tools, place):
    """Debian's packages and their source, unpacked; no package is installed."""
    root, source = place / "root", place / "source"
    for directory in (root, source, place / "lists/partial", place / "cache/archives/partial"):
        directory.mkdir(parents=True)
    (place / "sources.list").write_text("deb-src http://deb.debian.org/debian bookworm main\n")
    own = ["-o", f"Dir::Etc::sourcelist={place}/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", f"Dir::State::Lists={place}/lists",
           "-o", f"Dir::Cache={place}/cache"]
    for command in (["apt-get", "download", *PACKAGES], ["apt-get", *own, "update"], ["apt-get", *own, "source", "--download-only", "openfoam"]):
        code, out, err, _ = tools.site.run(["env", "-C", place, *command], timeout=600)
        if code:
            raise Missing(f"{' '.join(command[:1] + command[-1:])}: {' | '.join((out + err).splitlines()[-2:])}")
    for package in place.glob("*.deb"):
        tools.must(["dpkg-deb", "-x", package, root], "dpkg-deb")
    tools.must(["tar", "-C", source, "--strip-components=1", "-xjf", next(place.glob("*.orig.tar.bz2"))], "tar", 300)
    return root, source


def compile_object(tools, source, place):
    flags = ["-std=c++14", "-O2", "-fPIC", "-shared", "-DWM_DP", "-DWM_LABEL_SIZE=32", "-DNoRepository"]
    for part in HEADERS:
        tools.must([source / "wmake/wmakeLnInclude", "-s", source / "src" / part], "wmakeLnInclude", env={"WM_PROJECT_DIR": str(source)})
        flags += ["-isystem", source / "src" / part / "lnInclude"]
    library = place / "libclosure_learner.so"
    tools.must(["mpicxx.openmpi", *flags, "-Wall", "-Wextra", ROOT / "examples/openfoam/closure_learner.cc", *tools.flags("meshrun-mpi-openmpi"),
                "-o", library], "closure_learner.cc", 300)


def tutorial(root, place):
    case = place / "pitzDaily"
    shutil.copytree(root / TUTORIAL, case)
    control = case / "system/controlDict"
    text = re.sub(r"endTime\s+2000", f"endTime {ITERATIONS}", control.read_text())
    text = re.sub(r"writeInterval\s+100", f"writeInterval {ITERATIONS // 3}", text)
    control.write_text(re.sub(r"functions\s*\{[^}]*\}\n", FUNCTIONS, text))
    (case / "system/decomposeParDict").write_text(DECOMPOSITION)
    return case


def run(tools, mpirun):
    """What is said of it."""
    place = tools.site.directory / "openfoam"
    place.mkdir()
    root, source = fetch(tools, place)
    compile_object(tools, source, place)
    case = tutorial(root, place)
    libraries = [root / "usr/lib", root / "usr/lib/openmpi-system", root / "usr/lib/x86_64-linux-gnu", place]
    env = {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "WM_PROJECT_DIR": str(root / "usr/share/openfoam"), "OMP_NUM_THREADS": "1"}
    of = lambda words, what, timeout=120: tools.must(["env", "-C", case, *(f"{name}={value}" for name, value in env.items()), *words], what, timeout)
    of([root / "usr/bin/blockMesh"], "blockMesh")
    of([root / "usr/bin/decomposePar"], "decomposePar")
    said = of([*mpirun("openmpi", 2), root / "usr/bin/simpleFoam", "-parallel"], "simpleFoam -parallel", 900)
    found = re.findall(r"closureLearner: (\d+) cells, loss (\S+), eddy viscosity off by (\S+) %", said)
    check(len(found) == 3, f"simpleFoam: {said[-600:]}")
    off = [float(each[2]) for each in found]
    check(float(found[-1][1]) < 0.1 and off[-1] < 25 and off[-1] < off[0], f"the closure does not learn: {found}")
    check(sorted(os.listdir(case / "closure")), "no checkpoint of the closure")
    return f"OpenFOAM's pitzDaily on 2 ranks: the closure's eddy viscosity is off by {off[0]:.0f} % at first, then {off[-1]:.1f} %"
