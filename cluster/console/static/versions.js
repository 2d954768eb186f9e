// The versions of the configuration: the last rollout, each version's replicas, each replica's version.

import { byId, el, say } from "./dom.js";
import { clock, count } from "./format.js";
import { state } from "./feed.js";
import { HEALTH } from "./pools.js";

const STEPS = ["asked", "starting", "serving"];
const ROLES = ["router", "prefill", "decode"];
let drawn = "";

/** Draws rollout and versions if they changed. */
export function drawVersions() {
  const replicas = Object.entries(state.replicas).map(([id, one]) => ({ id, role: one.role, version: one.config || "unknown", health: one.health, started_at: one.started_at }));
  const now = JSON.stringify([replicas, state.cluster.rollout, state.settings.version]);
  if (now === drawn) return;
  drawn = now;
  replicas.sort((a, b) => b.started_at - a.started_at || a.id.localeCompare(b.id));
  say(byId("rollout"), rolloutText(replicas));
  byId("rollout-steps").replaceChildren(...steps(state.cluster.rollout?.state));
  byId("versions").replaceChildren(versionTable(replicas), replicaTable(replicas));
}

function rolloutText(replicas) {
  const { rollout } = state.cluster;
  if (!rollout) return "No rollout was asked for.";
  const version = rollout.version ? ` of version ${rollout.version}` : "";
  if (rollout.state === "failed") return `The rollout${version} failed and was rolled back: ${rollout.reason}`;
  if (rollout.state === "asked") return "A rollout was asked for.";
  if (rollout.state === "starting") return `Version ${rollout.version} starts beside the one before it.`;
  const before = replicas.filter((one) => one.version !== rollout.version).length;
  return `Version ${rollout.version} serves.${before ? ` ${count(before)} of the version before end what they have begun.` : ""}`;
}

function steps(now) {
  if (!now) return [];
  const names = now === "failed" ? [...STEPS.slice(0, 2), "failed"] : STEPS;
  return names.map((name) => el("li", { "aria-current": name === now ? "step" : null, class: name === "failed" ? "problem" : null }, name));
}

function versionTable(replicas) {
  const versions = [...new Set(replicas.map((one) => one.version))];
  const rows = versions.map((version) => {
    const own = replicas.filter((one) => one.version === version);
    const cells = ROLES.map((role) => own.filter((one) => one.role === role).length);
    return [version, ...cells, own.filter((one) => one.health === "leaving").length];
  });
  return table("Replicas of each version", ["Version", "Routers", "Prefill", "Decode", "Leaving"], rows);
}

function replicaTable(replicas) {
  const rows = replicas.map((one) => [one.id, one.role, one.version, HEALTH[one.health], clock(one.started_at)]);
  return table("Version of each replica", ["Replica", "Role", "Version", "State", "Since"], rows);
}

function table(caption, heads, rows) {
  const cell = (value) => el("td", { class: typeof value === "number" ? "number" : "" }, value);
  const numbers = rows[0]?.map((value) => typeof value === "number") ?? [];
  return el(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...heads.map((head, index) => el("th", { scope: "col", class: numbers[index] ? "number" : "" }, head)))),
      el("tbody", {}, ...rows.map(([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, name(first)), ...others.map(cell)))),
    ),
  );
}

const name = (version) => (version === state.settings.version ? `${version} (this router)` : version);
