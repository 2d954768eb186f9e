// One request as a waterfall: a bar for each stage, and its words.

import { bar, el } from "./dom.js";
import { seconds, stageName } from "./format.js";

/** The waterfall of stages `{stage, begin_s, end_s}`. A stage that ends at `present` goes on. */
export function waterfall(stages, label, present) {
  const whole = Math.max(...stages.map((one) => one.end_s), 1e-6);
  const rows = stages.map((one) => {
    const begin = (100 * one.begin_s) / whole;
    const length = Math.max(0.4, (100 * (one.end_s - one.begin_s)) / whole);
    const line = el("span", { class: `span stage-${one.stage}` });
    line.style.marginLeft = `${Math.min(99.6, begin)}%`;
    line.style.width = `${length}%`;
    return el("tr", {}, el("th", { scope: "row" }, stageName(one.stage)), el("td", { class: "track" }, line), el("td", { class: "number" }, `${seconds(one.end_s - one.begin_s)}${one.end_s === present ? " so far" : ""}`));
  });
  return el("table", { class: "waterfall" }, el("caption", { class: "unseen" }, label), el("tbody", {}, ...rows));
}

/** The stages of a row `[name, begin, end]` as one thin bar. */
export function stageBar(stages) {
  const whole = Math.max(...stages.map(([, , end]) => end), 1e-6);
  const label = stages.map(([name, begin, end]) => `${stageName(name)} ${seconds(end - begin)}`).join(", ");
  return bar(stages.map(([name, begin, end]) => [`stage-${name}`, end - begin, `${stageName(name)} ${seconds(end - begin)}`]), whole, label);
}

/** All of a request that `/console/request` answers. */
export function explained(row) {
  const parts = [el("p", {}, ...lines(row.words.request))];
  for (const choice of row.choices) {
    const [title, ...words] = row.words[String(choice.choice)] ?? [`choice ${choice.choice}`];
    parts.push(el("h3", {}, title));
    if (choice.stages.length) parts.push(waterfall(choice.stages, `Stages of choice ${choice.choice}`, choice.running_s));
    parts.push(el("ul", {}, ...words.map((text) => el("li", {}, text))));
  }
  if (row.words.end.length) parts.push(el("ul", {}, ...row.words.end.map((text) => el("li", {}, text))));
  return el("div", {}, ...parts);
}

function lines(texts) {
  return texts.flatMap((text, index) => (index ? [el("br"), text] : [text]));
}
