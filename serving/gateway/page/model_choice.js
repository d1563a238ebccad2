/** The choice of a model, which a panel's fields follow. */

import { selectField } from "./components/fields.js";
import { el } from "./dom.js";

/**
 * @param {string} task
 * @param {object[]} models Those that serve it; the default one is chosen at first.
 */
export function modelChoice(task, models) {
  const listeners = [];
  const best = models.find((model) => model.default) ?? models[0];
  const field = selectField("Model", models.map(({ id }) => [id, id]), { field: "model", value: best.id });
  const facts = el("p", { class: "hint" });
  field.element.append(facts);
  const chosen = () => models.find(({ id }) => id === field.value);
  const notify = () => {
    facts.textContent = described(chosen());
    for (const listener of listeners) listener(chosen());
  };
  field.input.addEventListener("change", notify);
  facts.textContent = described(best);
  return {
    models,
    element: field.element,
    get model() {
      return chosen();
    },
    /** Fields of a request that a model takes, of which one holds the items. */
    fieldsOf(model) {
      return model.inputs.find((entry) => entry.task === task).fields;
    },
    /** Choose the first model that fits; returns whether there is one. */
    choose(fits) {
      const found = fits(chosen()) ? chosen() : models.find(fits);
      if (!found) return false;
      field.value = found.id;
      notify();
      return true;
    },
    /** Call `listener` with the model now and after each choice. */
    follow(listener) {
      listeners.push(listener);
      listener(chosen());
    },
  };
}

function described({ architecture, precision, version, limits }) {
  const tokens = limits.max_total_tokens ?? limits.max_input_tokens;
  return `${architecture}, ${precision}, version ${version}, up to ${tokens} tokens`;
}
