/** How tokens are chosen: what `generate` and `chat` have in common. */

import { fieldRow, numberField, sliderField } from "./fields.js";
import { rowsField } from "./rows.js";

/** @param {{temperature: number, tokens: number}} defaults */
export function generationFields(defaults) {
  const temperature = sliderField("Temperature", {
    field: "temperature", value: defaults.temperature, min: 0, max: 2, step: 0.1,
    hint: "0 always takes the most likely token.",
  });
  const tokens = numberField("Tokens at most", { field: "max_new_tokens", min: 1, step: 1, value: defaults.tokens });
  const seed = numberField("Seed", { field: "seed", min: 0, step: 1, placeholder: "random" });
  const topP = numberField("Top p", { field: "top_p", min: 0, max: 1, step: 0.05 });
  const topK = numberField("Top k", { field: "top_k", min: 0, step: 1 });
  const penalty = numberField("Repetition penalty", { field: "repetition_penalty", min: 0, max: 10, step: 0.1 });
  const stops = rowsField("Stop strings", {
    columns: ["text"], field: "stop", noun: "stop string", isTrimmed: false,
    hint: "The text ends before the first of them. \\n stands for a line break.",
  });
  return {
    fields: [fieldRow(temperature, tokens)],
    options: [fieldRow(seed, topP, topK, penalty), stops.element],
    set(values) {
      temperature.value = values.temperature;
    },
    /** Fields of the request; a stream has no beams. */
    get value() {
      const given = stops.value.map(([text]) => text.replaceAll("\\n", "\n"));
      const isSampled = temperature.value > 0;
      return {
        temperature: temperature.value,
        max_new_tokens: tokens.value,
        seed: isSampled ? seed.value : null,
        top_p: isSampled ? topP.value : null,
        top_k: isSampled ? topK.value : null,
        repetition_penalty: penalty.value,
        stop: given.length ? given : null,
        num_beams: 1,
        stream: true,
      };
    },
  };
}
