/** `chat`: a conversation, for models whose checkpoint has a chat template. */

import { textArea } from "../components/fields.js";
import { generationFields } from "../components/generation_fields.js";
import { pictured } from "../components/places.js";
import { InputError } from "../components/problem.js";
import { imagePlaceOf, promptPictures } from "../components/prompt_pictures.js";
import { streamView } from "../components/stream_view.js";
import { button, el } from "../dom.js";

const PLACE = "<image>"; // in EXAMPLES; a model may have another
const TOLD = [
  { role: "user", content: "My name is Torsten. My car is red." },
  { role: "assistant", content: "Nice to meet you, Torsten. I see." },
];

/** Those with `pictures` are for models that read them; numbers are example pictures'. */
const EXAMPLES = [
  { label: "What was told before", turns: TOLD, message: "What color is my car?" },
  {
    label: "Answers in Spanish",
    system: "Answer in Spanish.",
    turns: [
      { role: "user", content: "I live in London." },
      { role: "assistant", content: "Londres es muy bonito." },
    ],
    message: "Where do I live?",
  },
  { label: "What was not told", turns: TOLD, message: "Where do I live?" },
  { label: "A question about a picture", turns: [], message: `${PLACE}What colour is the upper shape?`, pictures: [0] },
  {
    label: "A further question",
    turns: [
      { role: "user", content: `${PLACE}What colour is the upper shape?`, pictures: [0] },
      { role: "assistant", content: "yellow" },
    ],
    message: "Where is the cross?",
    pictures: [],
  },
];

function create(shell) {
  const turns = []; // {role, content, pictures}: what has been said
  const system = textArea("System message", { field: "messages", rows: 2 });
  const message = textArea("Message", { field: "messages", rows: 3, value: "My name is Torsten. My car is red." });
  const pictures = promptPictures(message, "message");
  const generation = generationFields({ temperature: 0.7, tokens: 200 });
  const clear = button("Start over", () => {
    continueFrom([]);
    message.input.focus();
  }, { class: "quiet", hidden: true });
  message.element.append(clear);

  const takesPictures = (model) => imagePlaceOf(shell, model) !== null;
  const earlier = () => turns.flatMap((said) => said.pictures);

  function continueFrom(said) {
    turns.splice(0, turns.length, ...said);
    clear.hidden = turns.length === 0;
    followModel(shell.model);
  }

  function followModel(model) {
    pictures.follow(imagePlaceOf(shell, model), model.limits.max_prompt_images - earlier().length);
  }

  async function fill(example) {
    const own = (text) => text.replaceAll(PLACE, pictures.place ?? PLACE);
    system.value = example.system ?? "";
    message.value = own(example.message);
    generation.set({ temperature: 0 });
    const shown = await Promise.all(example.turns.map((said) => pictures.load(...(said.pictures ?? []))));
    continueFrom(example.turns.map((said, at) => ({ ...said, content: own(said.content), pictures: shown[at] })));
    await pictures.choose(...(example.pictures ?? []));
  }

  /** The conversation with the message that is being written. */
  function conversation() {
    const first = system.value.trim() ? [{ role: "system", content: system.value.trim(), pictures: [] }] : [];
    return [...first, ...turns, { role: "user", content: message.value.trim(), pictures: pictures.value }];
  }

  const offered = EXAMPLES.filter(({ pictures: shown }) => !shown || shell.models.some(takesPictures));
  shell.follow(followModel);

  return {
    fields: [message.element, pictures.element, ...generation.fields],
    options: [system.element, ...generation.options],
    examples: offered.map((example) => ({
      label: example.label,
      async apply() {
        shell.choose((model) => takesPictures(model) === Boolean(example.pictures));
        await fill(example);
      },
    })),
    request() {
      if (message.value.trim() === "") throw new InputError("write a message", "messages");
      if (pictures.problem) throw new InputError(pictures.problem, "images");
      const said = conversation();
      return {
        images: takesPictures(shell.model) ? said.flatMap((one) => one.pictures) : [],
        body: { messages: said.map(({ role, content }) => ({ role, content })), ...generation.value },
      };
    },
    stream() {
      const sent = conversation();
      const view = streamView([]);
      const log = el("div", { class: "chat" }, ...sent.map((said) => turn(said, pictures.place)), view.element);
      return {
        ...view,
        element: log,
        end(isWhole) {
          view.end(isWhole);
          message.value = "";
          pictures.choose();
          continueFrom([...turns, sent.at(-1), { role: "assistant", content: view.summary(), pictures: [] }]);
        },
      };
    },
  };
}

const SPEAKERS = { system: "System", user: "You", assistant: "Model" };

function turn({ role, content, pictures }, place) {
  const words = pictured(content, place, pictures);
  return el("div", { class: `turn ${role}` }, el("h4", {}, SPEAKERS[role]), el("p", {}, ...words));
}

export default {
  task: "chat",
  title: "Chat",
  lead: "A conversation, laid out by the model's own template; some models see pictures.",
  action: "Send",
  code: { input: "messages", result: "item.text" },
  create,
};
