/** How tokens are chosen: what `generate`, `chat` and `caption` have in common. */

import { fieldRow, numberField, sliderField } from "./fields.js";
import { rowsField } from "./rows.js";

/** Fields of sampling beside the temperature, for `fieldRow`. */
export function samplingFields() {
  const fields = {
    seed: numberField("Seed", { field: "seed", min: 0, step: 1, placeholder: "random" }),
    top_p: numberField("Top p", { field: "top_p", min: 0, max: 1, step: 0.05 }),
    top_k: numberField("Top k", { field: "top_k", min: 0, step: 1 }),
    repetition_penalty: numberField("Repetition penalty", {
      field: "repetition_penalty", min: 0, max: 10, step: 0.1,
    }),
  };
  return {
    fields: Object.values(fields),
    /** Fields of the request; at temperature 0 only the penalty counts. */
    value(isSampled) {
      const given = Object.entries(fields).map(([name, { value }]) => [name, value]);
      return Object.fromEntries(
        given.map(([name, value]) => [name, isSampled || name === "repetition_penalty" ? value : null]),
      );
    },
  };
}

/** @param {{temperature: number, tokens: number}} defaults */
export function generationFields(defaults) {
  const temperature = sliderField("Temperature", {
    field: "temperature", value: defaults.temperature, min: 0, max: 2, step: 0.1,
    hint: "0 always takes the most likely token.",
  });
  const tokens = numberField("Tokens at most", { field: "max_new_tokens", min: 1, step: 1, value: defaults.tokens });
  const sampling = samplingFields();
  const stops = rowsField("Stop strings", {
    columns: ["text"], field: "stop", noun: "stop string", isTrimmed: false,
    hint: "The text ends before the first of them. \\n stands for a line break.",
  });
  return {
    fields: [fieldRow(temperature, tokens)],
    options: [fieldRow(...sampling.fields), stops.element],
    set(values) {
      temperature.value = values.temperature;
    },
    /** Fields of the request, which is a stream. */
    get value() {
      const given = stops.value.map(([text]) => text.replaceAll("\\n", "\n"));
      return {
        temperature: temperature.value,
        max_new_tokens: tokens.value,
        ...sampling.value(temperature.value > 0),
        stop: given.length ? given : null,
        stream: true,
      };
    },
  };
}
