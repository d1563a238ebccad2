/** Elements from data. Text is always a text node: nothing is parsed as HTML. */

let count = 0;

/** An id that no other element has. */
export function newId(prefix) {
  count += 1;
  return `${prefix}-${count}`;
}

/**
 * An element.
 *
 * @param {string} tag
 * @param {object} properties `class`, `dataset`, `on` (event → listener); others that are
 *   properties of the element (`value`, `checked`) are set as such, the rest as attributes.
 *   `null`, `undefined` and `false` leave an attribute out.
 * @param {...(Node|string|null|undefined)} children
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "on") listen(element, value);
    else if (name in element && !name.startsWith("aria")) element[name] = value;
    else if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function listen(element, listeners) {
  for (const [event, listener] of Object.entries(listeners)) {
    element.addEventListener(event, listener);
  }
}

/** A button that submits nothing. */
export function button(label, onClick, properties = {}) {
  return el("button", { type: "button", on: { click: onClick }, ...properties }, label);
}

/** A number between 0 and 1 as a percentage. */
export function percent(share) {
  return `${(share * 100).toFixed(1)} %`;
}

/**
 * Arrow keys move the focus among `items`, of which one at a time is in the tab order.
 *
 * @param {HTMLElement} group Receives the key events.
 * @param {HTMLElement[]} items In their order.
 * @param {(item: HTMLElement) => void} [onMove] After an arrow key has moved the focus.
 */
export function rovingFocus(group, items, onMove = () => {}) {
  const select = (chosen) => {
    for (const item of items) item.tabIndex = item === chosen ? 0 : -1;
  };
  select(items.find((item) => item.getAttribute("aria-selected") === "true") ?? items[0]);
  group.addEventListener("focusin", (event) => {
    if (items.includes(event.target)) select(event.target);
  });
  group.addEventListener("keydown", (event) => {
    const at = items.indexOf(event.target);
    const to = moved(event.key, at, items.length);
    if (at < 0 || to === null || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    items[to].focus();
    onMove(items[to]);
  });
}

function moved(key, at, length) {
  if (key === "ArrowRight" || key === "ArrowDown") return (at + 1) % length;
  if (key === "ArrowLeft" || key === "ArrowUp") return (at + length - 1) % length;
  if (key === "Home") return 0;
  if (key === "End") return length - 1;
  return null;
}
