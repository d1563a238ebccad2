/** `generate`: a prompt continued as one watches, below an instruction and examples. */

import { textArea } from "../components/fields.js";
import { fewShot } from "../components/few_shot.js";
import { generationFields } from "../components/generation_fields.js";
import { pictured } from "../components/places.js";
import { InputError } from "../components/problem.js";
import { imagePlaceOf, promptPictures } from "../components/prompt_pictures.js";
import { streamView } from "../components/stream_view.js";

const PLACE = "<image>"; // in EXAMPLES; a model may have another

/** Those with `pictures` are for models whose prompts hold them; numbers are example pictures'. */
const EXAMPLES = [
  { label: "A sentence to continue", prompt: "a small red", temperature: 0.7 },
  {
    label: "A code from four examples",
    prompt: "dovfen",
    temperature: 0,
    instruction: "Translate into the secret code.",
    shots: [["dovfen", "murgav"], ["jodsax", "jodtek"], ["pofgip", "fimmig"], ["sovgav", "gimjem"]],
  },
  { label: "A picture to continue", prompt: PLACE, pictures: [0], temperature: 0 },
  {
    label: "A picture after two examples",
    prompt: PLACE,
    pictures: [3],
    temperature: 0,
    shots: [[PLACE, "yellow crescent", 2], [PLACE, "orange crescent", 4]],
  },
];

function create(shell) {
  const prompt = textArea("Prompt", { field: "prompts", rows: 3 });
  const pictures = promptPictures(prompt);
  const shots = fewShot(() => ({ text: prompt.value, pictures: pictures.value }));
  const generation = generationFields({ temperature: 0.7, tokens: 60 });
  const takesPictures = (model) => imagePlaceOf(shell, model) !== null;
  prompt.input.addEventListener("input", shots.show);
  shell.follow((model) => {
    const place = imagePlaceOf(shell, model);
    pictures.follow(place, model.limits.max_prompt_images);
    shots.follow(place);
  });

  async function fill(example) {
    const own = (text) => text.replaceAll(PLACE, pictures.place ?? PLACE);
    prompt.value = own(example.prompt);
    generation.set(example);
    const rows = example.shots?.map(([input, ...rest]) => [own(input), ...rest]);
    await Promise.all([pictures.choose(...(example.pictures ?? [])), shots.set({ ...example, shots: rows })]);
  }

  const fits = (example) => (model) => takesPictures(model) === Boolean(example.pictures);
  const offered = EXAMPLES.filter(({ pictures: shown }) => !shown || shell.models.some(takesPictures));

  return {
    fields: [prompt.element, pictures.element, shots.element, ...generation.fields],
    options: generation.options,
    examples: offered.map((example) => ({
      label: example.label,
      async apply() {
        shell.choose(fits(example));
        await fill(example);
      },
    })),
    ready: fill(EXAMPLES.find((example) => fits(example)(shell.model))),
    request() {
      if (shots.problem) throw new InputError(shots.problem, "examples");
      if (pictures.problem) throw new InputError(pictures.problem, "images");
      return {
        images: [...shots.pictures, ...pictures.value],
        body: { prompts: prompt.value, ...shots.value, ...generation.value },
      };
    },
    stream: () => {
      const text = shots.isLaidOut ? `${prompt.value} ⇒ ` : prompt.value;
      return streamView(pictured(text, pictures.place, pictures.value));
    },
  };
}

export default {
  task: "generate",
  title: "Generate",
  lead: "A prompt continued as you watch; a few solved examples can define the task.",
  action: "Generate",
  code: { input: "prompts", result: "item.text" },
  create,
};
