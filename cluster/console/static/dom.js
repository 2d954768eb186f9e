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

/** Keeps a child of `parent` for each item by its key, in the order of the items. */
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child === undefined) {
      child = create(item);
      child.dataset.key = key;
    }
    known.delete(key);
    update(child, item);
    if (child === before) before = child.nextElementSibling;
    else parent.insertBefore(child, before);
  }
  for (const child of known.values()) child.remove();
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
