/** Instruction and solved examples, with pictures where prompts hold them, and their layout. */

import { el } from "../dom.js";
import { EXAMPLE_PICTURES, examplePicture } from "../example_pictures.js";
import { textField } from "./fields.js";
import { withUrl } from "./picture_input.js";
import { countPlaces, difference, pictured, withoutPlace } from "./places.js";
import { rowPicture } from "./row_picture.js";
import { rowsField } from "./rows.js";

/** @param {() => {text: string, pictures: object[]}} prompt The prompt below the examples. */
export function fewShot(prompt) {
  let place = null;
  const instruction = textField("Instruction", { field: "instruction" });
  const shots = rowsField("Solved examples", {
    columns: ["input", "output"], field: "examples", noun: "example", separator: "⇒",
    lead: (row, [input]) => rowPicture(row, { isOn: () => place !== null, onChange: placed(input) }),
  });
  const layout = el("pre", { class: "layout", hidden: true, tabIndex: 0, "aria-label": "The whole prompt" });
  const element = el(
    "details", { class: "options" }, el("summary", {}, "Few-shot examples"),
    instruction.element, shots.element,
    el("p", { class: "hint" }, "With an instruction or examples the model reads:"), layout,
  );
  element.addEventListener("input", show);
  element.addEventListener("click", show); // rows are removed by buttons

  /** A row's picture has a place in its input. */
  function placed(input) {
    return (picture) => {
      const isWritten = countPlaces(input.value, place) > 0;
      if (picture && !isWritten) input.value = `${place} ${input.value}`.trim();
      if (!picture && isWritten) input.value = withoutPlace(input.value, place, 0);
    };
  }

  const rows = () =>
    shots.value.map(([picture, input, output]) => ({ input, output, picture: place ? picture : null }));

  /** The layout of Brown et al. 2020, figure 2.1 (docs/endpoints/generate.md). */
  function show() {
    const { text, pictures } = prompt();
    const head = instruction.value.trim();
    const before = rows().map(({ input, output }) => `${input} => ${output}\n`).join("");
    layout.hidden = !made.isLaidOut;
    layout.replaceChildren(
      ...pictured(`${head ? `${head}\n\n` : ""}${before}${text} =>`, place, [...made.pictures, ...pictures]),
    );
  }

  const made = {
    element,
    show,
    get isLaidOut() {
      return instruction.value.trim() !== "" || shots.value.length > 0;
    },
    /** Those of the examples, in their order. */
    get pictures() {
      return rows().map(({ picture }) => picture).filter(Boolean);
    },
    /** Fields of the request. */
    get value() {
      const pairs = rows().map(({ input, output }) => ({ input, output }));
      return { instruction: instruction.value.trim() || null, examples: pairs.length ? pairs : null };
    },
    /** What has another number of places than of pictures, in words; empty where nothing has. */
    get problem() {
      if (place === null) return "";
      const differing = rows().map(({ input, output, picture }, at) =>
        difference(`example ${at + 1}`, `${input} ${output}`, place, picture ? 1 : 0),
      );
      const inInstruction = difference("the instruction", instruction.value, place, 0);
      return [inInstruction, ...differing].find((words) => words !== "") ?? "";
    },
    /** What stands for a picture in the model's prompts; null where they hold none. */
    follow(modelPlace) {
      place = modelPlace;
      shots.element.classList.toggle("with-pictures", place !== null);
      show();
    },
    /** @param {{instruction?: string, shots?: [string, string, number?][]}} example A shot has
     *   input, output, and the number of its example picture. */
    async set(example) {
      instruction.value = example.instruction ?? "";
      element.open = Boolean(example.shots);
      shots.value = await Promise.all((example.shots ?? []).map(filled));
      show();
    },
  };
  return made;
}

/** A row; its place has no picture if that cannot be loaded. */
async function filled([input, output, index]) {
  if (index === undefined) return [null, input, output];
  const picture = await examplePicture(EXAMPLE_PICTURES[index]).then(withUrl, () => null);
  return [picture, input, output];
}
