// The page of the configuration: versions, canaries, and all settings in force.

import { call } from "./access.js";
import { drawCanaries } from "./canaries.js";
import { byId, el } from "./dom.js";
import { state } from "./feed.js";
import { drawVersions } from "./versions.js";

const AGAIN_MS = 10000;
let fetched = null;
let notBefore = 0;

/** Draws the page; fetches the configuration once for a version, and again where that failed. */
export function drawSettings() {
  drawVersions();
  drawCanaries();
  if (fetched !== state.settings.version && state.settings.version && Date.now() >= notBefore) {
    fetched = state.settings.version;
    fetchSettings();
  }
}

async function fetchSettings() {
  try {
    const { configuration } = await call("console/configuration");
    byId("settings").replaceChildren(...Object.entries(configuration).map(section));
  } catch (error) {
    fetched = null;
    notBefore = Date.now() + AGAIN_MS;
    byId("settings").replaceChildren(el("p", { class: "problem" }, error.message));
  }
}

function section([name, values]) {
  const text = Object.entries(values ?? {}).map(([key, value]) => `${key}: ${JSON.stringify(value, null, 1).replace(/\n */g, " ")}`).join("\n");
  return el("details", {}, el("summary", {}, name), el("pre", { tabIndex: 0 }, text || "defaults"));
}
