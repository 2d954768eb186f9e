// The other routers of the cluster: whose requests are shown, and whose are missing.

import { byId, say, show } from "./dom.js";
import { state } from "./feed.js";

/** Whether the cluster has more than one router. */
export const severalRouters = () => Object.keys(state.routers).length > 0;

/** The router of a request; nothing in a cluster of one router. */
export const routerOf = (row) => (severalRouters() ? (row.router ?? state.router) : "");

/** Says whose figures the page has. */
export function drawRouters() {
  const silent = Object.entries(state.routers).filter(([, reason]) => reason !== null);
  const text = silent.map(([name, reason]) => `The requests of ${name} are missing: ${reason}.`).join(" ");
  say(byId("silent-routers"), text);
  show(byId("silent-routers"), silent.length > 0);
  const several = severalRouters();
  say(byId("canaries-title"), several ? `Canaries, as ${state.router} sees them` : "Canaries");
  say(byId("tenants-note"), several ? "What all routers served, and the use of each cap in the routers that answer." : "What this router served, and the use of its part of each cap. The caps hold over all routers.");
}
