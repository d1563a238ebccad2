/** `generate`: a prompt continued as one watches, below an instruction and examples. */

import { textArea, textField } from "../components/fields.js";
import { generationFields } from "../components/generation_fields.js";
import { rowsField } from "../components/rows.js";
import { streamView } from "../components/stream_view.js";
import { el } from "../dom.js";

const EXAMPLES = [
  { label: "A sentence to continue", prompt: "a small red", temperature: 0.7 },
  {
    label: "A code from four examples",
    prompt: "dovfen",
    temperature: 0,
    instruction: "Translate into the secret code.",
    shots: [["dovfen", "murgav"], ["jodsax", "jodtek"], ["pofgip", "fimmig"], ["sovgav", "gimjem"]],
  },
];

function create() {
  const prompt = textArea("Prompt", { field: "prompts", rows: 3 });
  const instruction = textField("Instruction", { field: "instruction" });
  const shots = rowsField("Solved examples", {
    columns: ["input", "output"], field: "examples", noun: "example", separator: "⇒",
  });
  const layout = el("pre", { class: "layout", hidden: true, tabIndex: 0, "aria-label": "The whole prompt" });
  const generation = generationFields({ temperature: 0.7, tokens: 60 });
  const fewShot = el(
    "details", { class: "options" }, el("summary", {}, "Few-shot examples"),
    instruction.element, shots.element,
    el("p", { class: "hint" }, "With an instruction or examples the model reads:"), layout,
  );
  const apply = (example) => {
    prompt.value = example.prompt;
    instruction.value = example.instruction ?? "";
    shots.value = example.shots ?? [];
    generation.set(example);
    fewShot.open = Boolean(example.shots);
    show();
  };
  const isLaidOut = () => instruction.value.trim() !== "" || shots.value.length > 0;
  const show = () => {
    layout.hidden = !isLaidOut();
    layout.textContent = laidOut(instruction.value.trim(), shots.value, prompt.value);
  };
  fewShot.addEventListener("input", show);
  fewShot.addEventListener("click", show); // rows are removed by buttons
  prompt.input.addEventListener("input", show);
  apply(EXAMPLES[0]);

  return {
    fields: [prompt.element, fewShot, ...generation.fields],
    options: generation.options,
    examples: EXAMPLES.map((example) => ({ label: example.label, apply: () => apply(example) })),
    request() {
      const pairs = shots.value.map(([input, output]) => ({ input, output }));
      return {
        body: {
          prompts: prompt.value,
          instruction: instruction.value.trim() || null,
          examples: pairs.length ? pairs : null,
          ...generation.value,
        },
      };
    },
    stream: () => streamView(isLaidOut() ? `${prompt.value} ⇒ ` : prompt.value),
  };
}

/** The layout of Brown et al. 2020, figure 2.1 (docs/generate.md). */
function laidOut(instruction, shots, prompt) {
  const lines = [...shots.map(([input, output]) => `${input} => ${output}`), `${prompt} =>`];
  return (instruction ? `${instruction}\n\n` : "") + lines.join("\n");
}

export default {
  task: "generate",
  title: "Generate",
  lead: "A prompt continued as you watch; a few solved examples can define the task.",
  action: "Generate",
  code: { input: "prompts", result: "item.text" },
  create,
};
