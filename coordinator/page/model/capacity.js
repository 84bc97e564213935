// What the nodes of a cluster have together, and what of it is used. Pure.

import {stateName} from "./names.js";

// {slots, slotsUsed, gpus, gpusUsed}. A node that is lost has nothing.
export function capacity(nodes) {
  const present = nodes.filter((node) => stateName(node.state) !== "LOST");
  const sum = (of) => present.reduce((total, node) => total + (of(node) ?? 0), 0);
  return {
    slots: sum((node) => node.resources?.slots),
    slotsUsed: sum((node) => node.slotsUsed),
    gpus: sum((node) => node.resources?.gpus?.length),
    gpusUsed: sum((node) => node.gpusUsed?.length)
  };
}
