/** Tabs after the ARIA pattern: one panel is visible, arrow keys move, the address names it. */

import { el, newId, rovingFocus } from "./dom.js";

/**
 * @param {{name: string, title: string, build: () => HTMLElement}[]} entries Panels are built when
 *   they are first shown.
 * @returns {HTMLElement}
 */
export function tabs(entries) {
  const made = entries.map(({ name, title, build }) => {
    const id = newId("tab");
    const panel = el("div", { role: "tabpanel", id: `${id}-panel`, "aria-labelledby": id, hidden: true });
    const tab = el(
      "button",
      { type: "button", role: "tab", id, "aria-controls": panel.id, dataset: { task: name } },
      title,
    );
    tab.addEventListener("click", () => select(name));
    return { name, title, build, tab, panel };
  });

  function select(name) {
    for (const entry of made) {
      const isChosen = entry.name === name;
      entry.tab.setAttribute("aria-selected", String(isChosen));
      entry.panel.hidden = !isChosen;
      if (isChosen && !entry.panel.firstChild) entry.panel.append(entry.build());
      if (isChosen) {
        document.title = `${entry.title} · Triptych`;
        entry.tab.scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    }
    if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  }

  function named() {
    const name = location.hash.slice(1);
    return made.some((entry) => entry.name === name) ? name : made[0].name;
  }

  const list = el(
    "div", { class: "tabs", role: "tablist", "aria-label": "Tasks" }, ...made.map(({ tab }) => tab),
  );
  select(named());
  window.addEventListener("hashchange", () => select(named()));
  rovingFocus(list, made.map(({ tab }) => tab), (tab) => tab.click());
  return el("div", {}, list, ...made.map(({ panel }) => panel));
}
