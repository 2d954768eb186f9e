// The console: follows the feed, and draws the page that is shown.

import { askForKey } from "./access.js";
import { byId, note, say, show } from "./dom.js";
import { drawCharts } from "./charts.js";
import { follow, state } from "./feed.js";
import { clock, lasting } from "./format.js";
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

const chosen = () => (Object.hasOwn(PAGES, location.hash.slice(1)) ? location.hash.slice(1) : "overview");

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
    if (link.hash === `#${chosen()}`) {
      link.setAttribute("aria-current", "page");
      document.title = `${link.textContent} · Tandem console`;
    } else link.removeAttribute("aria-current");
  }
  draw();
}

function told(text, live) {
  const since = state.router ? `; the page shows ${clock(state.now)}` : "";
  say(byId("live"), live ? `live · ${state.router ?? ""}` : `${text}${since}`);
  byId("live").classList.toggle("on", live);
  document.body.classList.toggle("stale", !live);
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
  for (const name of ["request-dialog", "act-dialog"]) byId(name).close();
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
  if (await askForKey("The key is for what an operator does here.")) note("The key is used from now on.");
});
// The address keeps the page that is shown.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
turn();
follow(changed, told);
