// The two pools: a card for each replica, and the KV links between them.

import { act, confirmAct } from "./access.js";
import { byId, el, fillBar, keyed, say, show } from "./dom.js";
import { count, percent, rate, seconds, short } from "./format.js";
import { state } from "./feed.js";
import { shownRise } from "./rise.js";

// Orphaned blocks are among the others, and in no part of the bar.
const BLOCKS = ["running", "leased", "quarantined", "cached"];
const POOLS = { prefill: "Prefill", decode: "Decode" };
/** The health of a replica in words. */
export const HEALTH = { ok: "healthy", leaving: "leaves", lost: "no answer" };
const TOKENS = "1k prompt tokens";
const SVG = "http://www.w3.org/2000/svg";

/** Draws pools and links. */
export function drawPools() {
  const replicas = Object.entries(state.replicas).filter(([, one]) => one.role !== "router").sort(([a], [b]) => a.localeCompare(b));
  const inPrefill = ([, one]) => one.role === "prefill";
  keyed(byId("pool-prefill"), replicas.filter(inPrefill), ([id]) => id, card, update);
  keyed(byId("pool-decode"), replicas.filter((one) => !inPrefill(one)), ([id]) => id, card, update);
  for (const pool of ["prefill", "decode"]) mark(pool, shownRise());
  const least = state.settings.least_replicas ?? {};
  say(byId("missing"), `No healthy replica: ${state.missing.join(", ")}.`);
  show(byId("missing"), state.missing.length > 0);
  const routers = Object.values(state.replicas).filter((one) => one.role === "router").length;
  const wanted = Object.entries(least).map(([pool, number]) => `${number} ${pool}`).join(", ");
  const starting = (state.cluster.starting ?? []).map((one) => `${short(one.id)} starts: ${one.progress}. `).join("");
  say(byId("pool-note"), `${starting}${routers} ${routers === 1 ? "router" : "routers"}; wanted at least: ${wanted || "nothing"}. ${state.cluster.launched ? "Drain lets a replica's work end; kill ends it as kill -9 does. Ray Serve starts another one, and streams go on." : "Replicas can be drained and killed here in a cluster of tandem serve."}`);
  drawLinks();
}

/** Says at the head of a pool that the rise of TTFT comes from there. */
function mark(pool, rise) {
  const title = byId(`pool-${pool}`).previousElementSibling;
  const here = rise?.cause.pool === pool;
  say(title, here ? `${POOLS[pool]}: ${percent(Math.min(1, rise.pools[0].share))} of the added TTFT of ${rise.endpoint}` : POOLS[pool]);
  title.classList.toggle("cause", here);
}

/** Whether requests waited for KV blocks: some that run, or those of the rise that is shown. Blocks that are only full serve well. */
function blocksAwaited() {
  const rise = shownRise();
  const waited = (one) => one.waited_for === "kv_blocks";
  return rise?.cause.reason === "kv_blocks" || state.running.rows.some(waited);
}

/** One mark of a slow replica: beside the others now, and in the rise that is shown. */
function slowness(one, slow, share) {
  const took = share ? `${seconds(share.slow_s)} a request` : "";
  if (one.slow) return `${[one.slow, took].filter(Boolean).join(", ")} · `;
  return slow ? `slow${took && `: ${took}`} · ` : "";
}

function card([id]) {
  const buttons = el("div", { class: "row acts" }, endButton(id, "drain"), endButton(id, "kill"));
  return el(
    "section",
    { class: "card", "aria-label": `Replica ${id}` },
    el("div", { class: "row spread" }, el("strong", { class: "name", title: id }, short(id)), el("span", { class: "tag" })),
    el("dl", {}, ...["Queue", "Batch", "Step", "Prompts"].flatMap((name) => [el("dt", {}, name), el("dd")])),
    el("p", { class: "blocks" }),
    el("span", { class: "bar tall", role: "img" }),
    buttons,
  );
}

function endButton(id, how) {
  const text = how === "kill" ? `The process of ${id} ends at once. Its streams go on on other replicas, as far as there are any.` : `${id} takes no new work and ends once its work has ended. Another replica starts.`;
  const run = async () => {
    const title = how === "kill" ? "Kill this replica?" : "Drain this replica?";
    if (await confirmAct(title, text, how === "kill" ? "Kill" : "Drain")) await act(`console/${how}`, { replica: id }, `${how === "kill" ? "Killed" : "Draining"}: ${id}`);
  };
  return el("button", { type: "button", class: how, "aria-label": `${how} ${id}`, on: { click: run } }, how === "kill" ? "Kill" : "Drain");
}

function update(child, [id, one]) {
  const [head, facts, blocks, line, acts] = child.children;
  const moved = one.home !== one.role ? `, at home in ${one.home}` : "";
  const version = one.config && one.config !== state.settings.version ? `, version ${one.config}` : "";
  const rise = shownRise();
  const slow = rise?.cause.replica === id;
  const full = one.blocks.total > 0 && one.blocks.promised >= 0.85 * one.blocks.total;
  child.classList.toggle("cause", slow);
  const awaited = full && blocksAwaited();
  child.classList.toggle("marked", awaited || Boolean(one.slow));
  const share = slow ? rise.replicas.find((each) => each.name === id) : undefined;
  const promised = full ? `${percent(one.blocks.promised / one.blocks.total)} of KV promised${awaited ? ", and requests waited for it" : ""} · ` : "";
  say(head.lastElementChild, `${slowness(one, slow, share)}${promised}${one.stalled ? "stalled" : HEALTH[one.health]} · ${one.role}${moved}${version}`);
  child.classList.toggle("unwell", one.health !== "ok" || one.stalled);
  const values = facts.querySelectorAll("dd");
  say(values[0], `${count(one.waiting)} waiting`);
  const computes = one.role === "prefill";
  say(values[1], computes ? `${count(one.running)} running` : `${count(one.streams)}${one.batch_limit ? ` of ${count(one.batch_limit)}` : ""}${one.promised ? `, ${count(one.promised)} promised` : ""}`);
  say(values[2].previousElementSibling, computes ? TOKENS : "Step");
  say(values[2], computes ? seconds(one.prefill_s) : `${seconds(one.step_s)}${one.role === "both" ? `, ${TOKENS} ${seconds(one.prefill_s)}` : ""}`);
  say(values[3], `${count(one.prompt_tokens_due)} tokens due`);
  const total = one.blocks.total;
  const parts = BLOCKS.map((name) => [`kv-${name}`, one.blocks[name], `${name} ${count(one.blocks[name])}`]);
  const held = [...BLOCKS, "orphaned"].filter((name) => one.blocks[name]).map((name) => `${count(one.blocks[name])} ${name}`).join(", ");
  const text = total ? `KV: ${held || "empty"}; ${count(total)} blocks${one.blocks.promised ? `, ${count(one.blocks.promised)} promised to requests` : ""}` : "no KV blocks";
  say(blocks, text);
  line.setAttribute("aria-label", text);
  fillBar(line, parts, total);
  show(acts, Boolean(state.cluster.launched));
}

/** The links as lines between cards; the faster the link, the faster its dashes move. */
export function drawLinks() {
  const place = byId("links");
  const links = state.links.filter((one) => one.from !== one.to);
  keyed(byId("link-list"), links, (one) => `${one.from} ${one.to}`, (one) => el("li", { title: `${one.from} to ${one.to}` }, `${short(one.from)} → ${short(one.to)} `, el("b")), (child, one) => say(child.lastElementChild, rate(one.bytes_per_s)));
  const box = place.getBoundingClientRect();
  if (!box.width) return;
  place.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  const known = new Map([...place.children].map((line) => [line.dataset.key, line]));
  const rates = new Map(links.map((one) => [`${one.from} ${one.to}`, one.bytes_per_s]));
  for (const [sender, receiver] of pairs(box.top)) {
    const key = `${sender.id} ${receiver.id}`;
    const line = known.get(key) ?? place.appendChild(document.createElementNS(SVG, "path"));
    line.dataset.key = key;
    known.delete(key);
    line.setAttribute("d", `M0 ${sender.at} C${box.width / 2} ${sender.at} ${box.width / 2} ${receiver.at} ${box.width} ${receiver.at}`);
    const speed = rates.get(key) ?? 0;
    line.setAttribute("class", speed ? "link moving" : "link");
    line.style.strokeWidth = `${speed ? 2 + Math.min(4, Math.log10(1 + speed / 1e4)) : 1}px`;
    line.style.animationDuration = `${Math.max(0.4, 3 - 0.6 * Math.log10(1 + speed / 1e4))}s`;
  }
  for (const line of known.values()) line.remove();
}

/** Each prefill replica with each decode replica. All places are read before a line is drawn. */
function pairs(top) {
  const [senders, receivers] = ["prefill", "decode"].map((pool) =>
    [...byId(`pool-${pool}`).children].map((card) => {
      const box = card.getBoundingClientRect();
      return { id: card.dataset.key, at: box.top + box.height / 2 - top };
    }),
  );
  return senders.flatMap((sender) => receivers.map((receiver) => [sender, receiver]));
}
