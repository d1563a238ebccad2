/** Terms of a translation: pairs, a stored glossary, and texts that are copied. */

import { listGlossaries } from "../api.js";
import { el } from "../dom.js";
import { linesOf, selectField, textArea } from "./fields.js";
import { InputError } from "./problem.js";
import { rowsField } from "./rows.js";

export function termFields() {
  const pairs = rowsField("Glossary", {
    columns: ["term", "rendering"], field: "glossary", noun: "term", separator: "⇒",
  });
  const stored = selectField("Stored glossary", [["", "none"]], { field: "glossary_name" });
  const copied = textArea("Not translated, one a line", { field: "do_not_translate", rows: 2 });
  const element = el(
    "details", { class: "options" }, el("summary", {}, "Terms"),
    pairs.element, stored.element, copied.element,
  );
  stored.element.hidden = true;
  listGlossaries().then(offer, () => {}); // without the list, the other fields still work

  function offer(glossaries) {
    stored.setChoices([["", "none"], ...glossaries.map((one) => [one.name, described(one)])]);
    stored.element.hidden = glossaries.length === 0;
  }

  return {
    element,
    /** Fields of the request. */
    get value() {
      const glossary = pairs.value;
      const lines = linesOf(copied.value);
      const half = glossary.find((row) => row.includes(""));
      if (half) throw new InputError("a term of the glossary has no rendering, or the reverse", "glossary");
      return {
        glossary: glossary.length ? Object.fromEntries(glossary) : null,
        glossary_name: stored.value || null,
        do_not_translate: lines.length ? lines : null,
      };
    },
    /** @param {{glossary?: [string, string][], copied?: string}} example */
    set({ glossary = [], copied: text = "" }) {
      pairs.value = glossary;
      copied.value = text;
      stored.value = "";
      element.open = glossary.length > 0 || text !== "";
    },
  };
}

function described({ name, source, target, size }) {
  const pair = source || target ? `${source ?? "any"}–${target ?? "any"}, ` : "";
  return `${name} (${pair}${size} ${size === 1 ? "term" : "terms"})`;
}
