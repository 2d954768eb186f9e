// Numbers, times and names as text. The router tells the names.

import { state } from "./feed.js";

/** Seconds as text: 12.3 ms, 123 ms, 1.25 s, 2.0 min; as `exact_time` of cluster/display_text.py. */
export function seconds(value) {
  if (value === undefined || value === null) return "–";
  if (Math.abs(value) < 0.0995) return `${(1000 * value).toFixed(1)} ms`;
  if (Math.abs(value) < 0.9995) return `${(1000 * value).toFixed(0)} ms`;
  if (Math.abs(value) < 99.5) return `${value.toFixed(2)} s`;
  return `${(value / 60).toFixed(1)} min`;
}

/** A number with separators, or a dash. */
export function count(value) {
  return value === undefined || value === null ? "–" : Math.round(value).toLocaleString("en");
}

/** A long time as text: 95 s, and from 3 minutes on 5 min; as `long_time` of cluster/display_text.py. */
export const lasting = (value) => (value < 180 ? `${value.toFixed(0)} s` : `${(value / 60).toFixed(0)} min`);

/** Bytes per second. */
export function rate(value) {
  const units = ["B/s", "kB/s", "MB/s", "GB/s"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(value < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}

/** A share as per cent. */
export const percent = (share) => `${Math.round(100 * share)}%`;

/** The local time of seconds since the epoch. */
export function clock(at) {
  return new Date(1000 * at).toLocaleTimeString("en-GB");
}

/** An id or a name, short enough for a label. */
export function short(id) {
  const characters = [...id];
  return characters.length > 18 ? `${characters.slice(0, 17).join("")}…` : id;
}

/** A value by a name that anybody chose; nothing where the table has none of its own. */
export const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);

/** A stage in words. */
export const stageName = (stage) => state.words.stages[stage] ?? stage;

/** A reason of a wait or a refusal in words. */
export const reasonName = (reason) => state.words.reasons[reason] ?? reason;
