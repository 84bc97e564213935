// What the rules of units*.js share.

export function equal(found, wanted, what) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`${what}: ${a}, not ${b}`);
}

export const rank = (number, step, more = {}) => ({
  assignment: {rank: number},
  state: "RANK_STATE_RUNNING",
  nodeName: `n${number}`,
  progress: step === null ? {} : {step},
  ...more
});
