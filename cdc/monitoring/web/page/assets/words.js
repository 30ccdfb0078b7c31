// Formats figures for display, and creates and updates elements.

export function inTime(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export function inBytes(count) {
  if (count === null || count === undefined) return "unknown";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let size = count, unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function inCount(count) {
  return count === null || count === undefined ? "unknown" : Math.round(count).toLocaleString("en");
}

export function inRate(rate) {
  if (rate === null || rate === undefined) return "–";
  return rate > 0 && rate < 10 ? rate.toFixed(1) : inCount(Math.max(0, rate));
}

export function atTime(seconds) {
  const date = new Date(seconds * 1000), now = new Date();
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === now.toDateString() ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children);
  return element;
}

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function set(element, name, value) {
  if (name === "text") element.textContent = value;
  else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (value === false || value === null || value === undefined) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : value);
}

// Changes an element's text only if it differs. So a selection remains, and a screen reader does not read it again.
export function say(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

export function state(element, name) {
  if (element.dataset.state !== name) element.dataset.state = name;
}

// Keeps one child element per item, identified by its key: creates it once and then only updates it.
export function keyed(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].filter((child) => child.dataset.key !== undefined).map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = known.get(key);
    if (element) known.delete(key);
    else { element = create(item); element.dataset.key = key; }
    update(element, item);
    const place = before ? before.nextElementSibling : parent.firstElementChild;
    if (place !== element) parent.insertBefore(element, place);
    before = element;
  }
  for (const element of known.values()) element.remove();
}
