// Numbers, times and names as text.

/** Seconds as text: 12 ms, 1.25 s, 2 min. */
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

/** A long time in words. */
export const lasting = (value) => `${Math.round(value / 60)} minutes`;

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
export const percent = (share) => `${Math.round(100 * share)} %`;

/** The local time of seconds since the epoch. */
export function clock(at) {
  return new Date(1000 * at).toLocaleTimeString("en-GB");
}

/** The id of a replica, short enough for a label. */
export function short(id) {
  return id.length > 18 ? `${id.slice(0, 17)}…` : id;
}

const STAGES = {
  admission: "wait in the router",
  failover: "failover",
  prefill_queue: "queue of prefill",
  prefill: "prefill",
  first_flush: "first flush",
  offer: "offer of KV",
  decode_admission: "wait for KV blocks",
  transfer: "transfer",
  decode: "decode",
  last_flush: "last flush",
};

/** A stage in words. */
export const stageName = (stage) => STAGES[stage] ?? stage;

/** The stages, in their order. */
export const stageNames = Object.keys(STAGES);

const REASONS = {
  ttft: "the first token would be late",
  itl: "ITL would be too long",
  kv_blocks: "KV blocks are short",
  decode_batch: "the decode batch is full",
  batch_prompts: "enough prompts of the batch lane wait",
  queue_full: "the router's queue is full",
  tenant_concurrent: "the tenant runs as many as it may",
  tenant_waiting: "the tenant waits with as much as it may",
  tenant_kv: "the tenant has as much KV as it may",
  starting: "a replica starts",
  router_full: "the router is full",
  replica_full: "a replica's queue is full",
};

/** A reason of a wait or a refusal in words. */
export const reasonName = (reason) => REASONS[reason] ?? reason;
