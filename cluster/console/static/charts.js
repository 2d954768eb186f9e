// The charts over time: TTFT and ITL by endpoint with their budgets, refusals by reason.

import { byId, el, keyed, say } from "./dom.js";
import { clock, count, lasting, own, reasonName, seconds, short } from "./format.js";
import { state } from "./feed.js";
import { lineLabels } from "./labels.js";
import { shownRise } from "./rise.js";

const COLOURS = 6;
const QUANTILES = ["p50", "p95", "longest"];
const charts = new Map();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The endpoints with points, the configured ones first. */
function endpoints() {
  const isTold = ([, point]) => point.first_tokens || point.itl[0] !== null || Object.keys(point.refused).length;
  const seen = new Set(Object.values(state.series).flatMap((step) => Object.entries(step).filter(isTold).map(([name]) => name)));
  const known = Object.keys(state.settings.endpoints).filter((name) => seen.has(name));
  return [...known, ...[...seen].filter((name) => !known.includes(name)).sort()];
}

function times() {
  const { window_s: whole, step_s: step } = state.chart;
  const last = Math.floor(state.now / step) * step;
  return Array.from({ length: whole / step + 1 }, (_, index) => last - whole + index * step);
}

/** Draws all three charts. */
export function drawCharts() {
  const names = endpoints();
  latency("ttft", names, (point) => point.ttft, (one) => one?.ttft_s, "TTFT");
  latency("itl", names, (point) => point.itl, (one) => one?.itl_s, "ITL");
  refusals();
}

function latency(id, names, valuesOf, budgetOf, title) {
  const at = times();
  const lines = names.flatMap((name, index) =>
    (id === "itl" ? [1, 0, 2] : [1, 0]).map((which) => ({ name: `${name} ${QUANTILES[which]}`, label: which === 1 ? short(name) : "", colour: index % COLOURS, width: which === 1 ? 2 : 1, dash: which === 2 ? [2, 3] : undefined, values: at.map((time) => valueAt(time, name, (point) => valuesOf(point)[which])) })),
  );
  const budgets = names.map((name, index) => ({ name, colour: index % COLOURS, value: budgetOf(state.settings.endpoints[name]) })).filter((one) => one.value);
  const highest = Math.max(0.001, ...lines.flatMap((one) => one.values.filter((value) => value !== null)));
  const near = budgets.filter((one) => one.value < 4 * highest);
  draw(id, at, lines, near, Math.max(highest, ...near.map((one) => one.value)) * 1.1, seconds);
  const legends = names.map((name, index) => {
    const newest = [...at].reverse().find((time) => (valueAt(time, name, valuesOf)?.[1] ?? null) !== null);
    const known = newest === undefined ? "none" : `${valueAt(newest, name, valuesOf).map((value, which) => `${QUANTILES[which]} ${seconds(value)}`).join(", ")} at ${clock(newest)}`;
    const budget = budgetOf(state.settings.endpoints[name]);
    return { name, colour: index % COLOURS, text: `${known}${budget ? `; budget ${seconds(budget)}` : ""}` };
  });
  legend(id, legends, title);
}

function refusals() {
  const at = times();
  const reasons = [...new Set(Object.values(state.series).flatMap((step) => Object.values(step).flatMap((point) => Object.keys(point.refused))))].sort();
  const sumAt = (time, reason) => Object.values(state.series[time] ?? {}).reduce((sum, point) => sum + (point.refused[reason] ?? 0), 0);
  const lines = reasons.map((reason, index) => ({ name: reason, label: short(reasonName(reason)), colour: index % COLOURS, width: 2, values: at.map((time) => sumAt(time, reason) / state.chart.step_s) }));
  const perSecond = (value) => (value < 1 ? value.toFixed(2) : value < 10 ? value.toFixed(1) : count(value));
  draw("refusal", at, lines, [], Math.max(0.5, ...lines.flatMap((one) => one.values)) * 1.1, (value) => `${perSecond(value)}/s`);
  const legends = reasons.map((reason, index) => ({ name: reasonName(reason), colour: index % COLOURS, text: `${count(state.chart.step_s * lines[index].values.reduce((a, b) => a + b, 0))} in ${lasting(state.chart.window_s)}` }));
  legend("refusal", legends, "Refusals", "No refusals.");
}

function valueAt(time, name, valueOf) {
  const point = own(state.series[time] ?? {}, name);
  return point ? valueOf(point) : null;
}

function legend(id, entries, title, none = "Nothing to show yet.") {
  const place = byId(`${id}-legend`);
  const shown = entries.length ? entries : [{ name: none, colour: null, text: "" }];
  keyed(place, shown, (one) => one.name, (one) => el("span", { class: "entry" }, el("i"), el("b", {}, one.name), " ", el("span")), (child, one) => {
    child.firstElementChild.className = one.colour === null ? "" : `swatch line-${one.colour}`;
    say(child.lastElementChild, one.text);
  });
  byId(`${id}-chart`).setAttribute("aria-label", `${title} over ${lasting(state.chart.window_s)}. ${shown.map((one) => `${one.name}: ${one.text}`).join(". ")}`);
}

/** Draws lines; a chart is made anew where its lines, its width or the colours changed. */
function draw(id, at, lines, budgets, highest, text) {
  const place = byId(`${id}-chart`);
  place.setAttribute("role", "img");
  const width = place.clientWidth;
  if (!width) return;
  const shape = JSON.stringify([lines.map((one) => [one.name, one.colour]), width, colour("--ink")]);
  let chart = charts.get(id);
  if (chart?.shape !== shape) {
    chart?.plot.destroy();
    chart = { shape, lines, budgets, highest, text };
    chart.plot = new uPlot(options(id, lines, width, place.clientHeight, chart), [at, ...lines.map((one) => one.values)], place);
    charts.set(id, chart);
    return;
  }
  Object.assign(chart, { lines, budgets, highest, text });
  chart.plot.setData([at, ...lines.map((one) => one.values)]);
}

function options(id, lines, width, height, chart) {
  const ink = colour("--quiet");
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui" };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: true, range: () => [state.now - state.chart.window_s, state.now] }, y: { range: () => [0, chart.highest] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => new Date(1000 * at).toLocaleTimeString("en-GB").slice(0, 5)) }, { ...axis, size: 64, values: (_, ticks) => ticks.map((value) => chart.text(value)) }],
    series: [{}, ...lines.map((one) => ({ label: one.name, stroke: colour(`--line-${one.colour}`), width: one.width, dash: one.dash, points: { size: 4, show: true }, spanGaps: true }))],
    hooks: { drawClear: [(plot) => shade(id, plot)], draw: [(plot) => budgetLines(plot, chart.budgets), (plot) => lineLabels(plot, chart.lines, colour("--ink"), colour("--panel"))] },
  };
}

/** Shades the slow times behind the lines of TTFT. */
function shade(id, plot) {
  const rise = id === "ttft" ? shownRise() : undefined;
  if (!rise) return;
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = colour("--shade");
  for (const one of [rise, ...(rise.also ?? [])]) {
    const from = Math.max(bbox.left, plot.valToPos(one.begin, "x", true));
    const to = Math.min(bbox.left + bbox.width, plot.valToPos(one.end, "x", true));
    ctx.fillRect(from, bbox.top, Math.max(0, to - from), bbox.height);
  }
  ctx.restore();
}

function budgetLines(plot, budgets) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.lineWidth = devicePixelRatio;
  for (const one of budgets) {
    const y = plot.valToPos(one.value, "y", true);
    ctx.strokeStyle = colour(`--line-${one.colour}`);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}
