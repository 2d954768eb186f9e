// The console: follows the feed, and draws the page that is shown.

import { askForKey } from "./access.js";
import { byId, note, say, show } from "./dom.js";
import { drawCharts } from "./charts.js";
import { follow, state } from "./feed.js";
import { lasting } from "./format.js";
import { drawPlayground, startPlayground } from "./playground.js";
import { drawLinks, drawPools } from "./pools.js";
import { drawRequests, startRequests } from "./requests.js";
import { drawRise } from "./rise.js";
import { drawRouters } from "./routers.js";
import { drawSettings } from "./settings.js";
import { drawTenants } from "./tenants.js";

const PAGES = {
  overview: () => {
    drawRise();
    drawCharts();
    drawPools();
  },
  requests: drawRequests,
  tenants: drawTenants,
  configuration: drawSettings,
  playground: drawPlayground,
};

const chosen = () => (location.hash.slice(1) in PAGES ? location.hash.slice(1) : "overview");

function draw() {
  say(byId("model"), state.settings.model ?? "");
  if (!state.router) return;
  drawRouters();
  for (const place of document.querySelectorAll(".window")) say(place, lasting(state.chart.window_s));
  PAGES[chosen()]();
}

function turn() {
  for (const name of Object.keys(PAGES)) show(byId(name), name === chosen());
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${chosen()}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  draw();
}

function told(text, live) {
  say(byId("live"), live ? `live · ${state.router ?? ""}` : text);
  byId("live").classList.toggle("on", live);
}

let due = false;
function changed() {
  if (due || document.hidden) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    draw();
  });
}

startRequests();
startPlayground();
addEventListener("hashchange", () => {
  turn();
  byId("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener("resize", () => {
  if (state.router && chosen() === "overview") {
    drawCharts();
    drawLinks();
  }
});
document.addEventListener("visibilitychange", changed);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
byId("key-button").addEventListener("click", async () => {
  if (byId("live").classList.contains("on") && (await askForKey("The key is for what an operator does here."))) note("The key is used from now on.");
});
turn();
follow(changed, told);
