// Makes elements. All text goes in as text nodes, so that a name with markup stays a name.

/** The element with that id. */
export const byId = (id) => document.getElementById(id);

/** An element with properties (`class`, `on`, `aria-...`, or a DOM property) and children. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "class") made.className = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name.includes("-") || name === "role" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((one) => one !== null && one !== undefined).map((one) => (one instanceof Node ? one : String(one))));
  return made;
}

/** Sets an element's text if it differs, so that screen readers hear changes alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows or hides an element. */
export function show(element, shown) {
  element.hidden = !shown;
}

/**
 * Keeps a child of `parent` for each item by its key, in the order of the items. A child with the
 * focus keeps it; where that child leaves, what can be focused around it gets the focus.
 */
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const wanted = new Map(items.map((item) => [keyOf(item), item]));
  const known = new Map();
  // What leaves goes first, because a child that has to move loses the focus.
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key)) known.set(child.dataset.key, child);
    else child.remove();
  }
  let before = parent.firstElementChild;
  for (const [key, item] of wanted) {
    const child = known.get(key) ?? create(item);
    child.dataset.key = key;
    update(child, item);
    if (child === before) before = child.nextElementSibling;
    else parent.insertBefore(child, before);
  }
  if (focused !== null && focused !== document.activeElement) (focused.isConnected ? focused : parent.closest("[tabindex]"))?.focus({ preventScroll: true });
}

/** Says a note for a while, at the lower edge of the page. */
export function note(text) {
  const made = el("p", { class: "note" }, text);
  byId("notes").append(made);
  setTimeout(() => made.remove(), 8000);
}

/** A bar with a part for each [class, value, title]; `whole` is its length. */
export function bar(parts, whole, label) {
  const made = el("span", { class: "bar", role: "img", "aria-label": label });
  fillBar(made, parts, whole);
  return made;
}

/** Sets the parts of a bar. */
export function fillBar(made, parts, whole) {
  const shown = parts.filter(([, value]) => value > 0);
  while (made.children.length > shown.length) made.lastElementChild.remove();
  while (made.children.length < shown.length) made.append(el("span"));
  shown.forEach(([kind, value, title], index) => {
    const part = made.children[index];
    part.className = kind;
    part.title = title ?? "";
    part.style.width = `${Math.min(100, (100 * value) / (whole || 1))}%`;
  });
}
