// The configuration in force, its versions over the cluster, the last rollout, and canaries.

import { call } from "./access.js";
import { byId, el } from "./dom.js";
import { count, percent, seconds } from "./format.js";
import { state } from "./feed.js";

let drawn = "";
let fetched = null;

/** Draws versions and canaries if they changed; fetches the configuration once for a version. */
export function drawSettings() {
  const versions = {};
  for (const [id, one] of Object.entries(state.replicas)) (versions[one.config || "unknown"] ??= []).push(id);
  const now = JSON.stringify([versions, state.cluster, state.canaries, state.settings.version]);
  if (now !== drawn) {
    drawn = now;
    byId("versions").replaceChildren(...versionList(versions));
    byId("canaries").replaceChildren(...canaryList());
  }
  if (fetched !== state.settings.version && state.settings.version) {
    fetched = state.settings.version;
    fetchSettings();
  }
}

function versionList(versions) {
  const rows = Object.entries(versions).map(([version, ids]) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, version), version === state.settings.version ? " (this router)" : ""), el("td", {}, ids.sort().join(", "))));
  const rollout = state.cluster.rollout;
  const text = rollout ? `Last rollout: ${rollout.state}${rollout.version ? `, version ${rollout.version}` : ""}${rollout.reason ? `: ${rollout.reason}` : ""}.` : "No rollout was asked for.";
  return [el("table", {}, el("tbody", {}, ...rows)), el("p", { class: "quiet" }, text)];
}

function canaryList() {
  if (!state.canaries.length) return [el("p", { class: "quiet" }, "No endpoint has a canary.")];
  return state.canaries.map((one) => {
    const arms = ["stable", "canary"].map((arm) => el("tr", {}, el("th", { scope: "row" }, arm), el("td", { class: "number" }, `${count(one[arm].requests)} requests`), el("td", { class: "number" }, `${count(one[arm].failed)} failed`), el("td", { class: "number" }, `TTFT p95 ${seconds(one[arm].ttft_p95_s)}`)));
    const fate = one.reason ? `rolled back: ${one.reason}` : `${percent(one.share)} of the requests`;
    return el("div", {}, el("p", {}, el("strong", {}, `${one.endpoint} as ${one.served_as}`), ` ${fate}`), el("table", {}, el("tbody", {}, ...arms)));
  });
}

async function fetchSettings() {
  try {
    const { configuration } = await call("console/configuration");
    byId("settings").replaceChildren(...Object.entries(configuration).map(section));
  } catch (error) {
    fetched = null;
    byId("settings").replaceChildren(el("p", { class: "problem" }, error.message));
  }
}

function section([name, values]) {
  const text = Object.entries(values ?? {}).map(([key, value]) => `${key}: ${JSON.stringify(value, null, 1).replace(/\n */g, " ")}`).join("\n");
  return el("details", {}, el("summary", {}, name), el("pre", { tabIndex: 0 }, text || "defaults"));
}
