// The command that submits a job like this one again, from its spec. Pure.

// For a POSIX shell.
export function quote(word) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

const DEFAULTS = {
  RECOVERY_RESPAWN: ["--recovery", "respawn"],
  GROWTH_AT_CHECKPOINT: ["--grow", "checkpoint"],
  GROWTH_AT_ONCE: ["--grow", "at-once"],
  GROWTH_NEVER: ["--grow", "never"]
};

// What the API does not say is not in it: values of the environment are for the ranks alone, so
// that `--env NAME` takes the caller's own.
export function submitCommand(spec) {
  const words = ["meshrun", "submit"];
  const flag = (name, value) => words.push(name, quote(String(value)));
  if (spec.name) flag("--name", spec.name);
  shape(spec, flag);
  for (const name of Object.keys(spec.env ?? {})) flag("--env", name);
  if (spec.workingDir) flag("--working-dir", spec.workingDir);
  limits(spec, flag);
  where(spec, flag);
  if (spec.private) words.push("--private");
  if (spec.virtualLocalRank) words.push("--virtual-local-rank");
  if (spec.hold) words.push("--hold");
  if (spec.shippedJob) flag("--job", spec.shippedJob);
  return [...words, "--", ...(spec.command ?? []).map(quote)].join(" ");
}

function shape(spec, flag) {
  const least = spec.minNodes || 1;
  const most = spec.maxNodes || least;
  if (most > 1) flag("--nodes", least === most ? least : `${least}:${most}`);
  const procs = spec.procsPerNode ?? {};
  const each = procs.gpu ? "gpu" : procs.cpu ? "cpu" : procs.count;
  if (each && each !== 1) flag("--procs-per-node", each);
  if (spec.mesh?.length)
    flag("--mesh", spec.mesh.map((axis) => `${axis.name}=${axis.size}`).join(","));
  if (spec.gpusPerProc !== undefined) flag("--gpus-per-proc", spec.gpusPerProc);
  if (spec.cpusPerProc > 1) flag("--cpus-per-proc", spec.cpusPerProc);
  if (spec.memoryBytes) flag("--memory", spec.memoryBytes);
}

function limits(spec, flag) {
  if (spec.maxRestarts) flag("--max-restarts", spec.maxRestarts);
  for (const value of [spec.recovery, spec.growth])
    if (DEFAULTS[value]) flag(...DEFAULTS[value]);
  if (spec.replaceAtOnce) flag("--replace", "at-once");
  if (spec.killGrace) flag("--kill-grace", spec.killGrace);
  if (spec.hangTimeout) flag("--hang-timeout", spec.hangTimeout);
  if (spec.queueTimeout) flag("--queue-timeout", spec.queueTimeout);
  if (spec.timeLimit) flag("--time-limit", spec.timeLimit);
  if (spec.logBytes) flag("--log-limit", spec.logBytes);
}

function where(spec, flag) {
  if (spec.priority) flag("--priority", spec.priority);
  for (const label of spec.constraints ?? []) flag("--constraint", label);
  for (const node of spec.excludeNodes ?? []) flag("--exclude", node);
  for (const job of spec.after ?? []) flag("--after", job);
  if (spec.account) flag("--account", spec.account);
  if (spec.partition) flag("--partition", spec.partition);
  const binding = /^NUMA_BINDING_(.*)$/.exec(spec.numaBinding ?? "")?.[1] ?? "UNSPECIFIED";
  if (binding !== "UNSPECIFIED") flag("--numa-binding", binding.toLowerCase().replaceAll("_", "-"));
}
