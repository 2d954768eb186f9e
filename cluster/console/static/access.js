// The operator's key, and calls to the router with it.

import { byId, note, say } from "./dom.js";
import { failureOf } from "./events.js";

const KEPT = "tandem-operator-key";
let asking = null;
const waiting = [];

function kept() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

let key = kept();

/** The headers of a call. */
export function headers() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Asks for the key; true once there is a new one. One question stands at a time. */
export function askForKey(reason) {
  if (asking !== null) return asking;
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  say(byId("key-reason"), reason);
  input.value = "";
  dialog.returnValue = "";
  asking = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      asking = null;
      const given = input.value.trim();
      input.value = "";
      if (dialog.returnValue !== "use" || !given) return resolve(false);
      key = given;
      try {
        sessionStorage.setItem(KEPT, key);
      } catch {
        // The key lasts as long as the page.
      }
      for (const one of waiting.splice(0)) one();
      return resolve(true);
    }, { once: true });
  });
  dialog.showModal();
  input.focus();
  return asking;
}

/** Waits until there is a new key, whatever asked for it. */
export const nextKey = () => new Promise((resolve) => waiting.push(resolve));

/** The JSON that the router answers; asks for the key where the router wants one. */
export async function call(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: headers(), signal: AbortSignal.timeout(15000) }).catch(() => {
      throw new Error("the router does not answer");
    });
    if (response.ok) return response.json();
    const { message, code } = await failureOf(response);
    // No key helps where a proxy changes the origin.
    const refused = response.status === 401 || (response.status === 403 && code !== "forbidden_origin");
    if (!refused || !(await askForKey(message))) throw new Error(message);
  }
}

/** Acts on the router, and says how that went. */
export async function act(path, fields, done) {
  try {
    await call(`${path}?${new URLSearchParams(fields)}`, { method: "POST" });
    note(done);
  } catch (error) {
    note(error.message);
  }
}

/** Asks whether to act; true for yes. */
export function confirmAct(title, text, yes) {
  const dialog = byId("act-dialog");
  say(byId("act-title"), title);
  say(byId("act-text"), text);
  say(byId("act-yes"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
