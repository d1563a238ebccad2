/** `chat`: a conversation, for models whose checkpoint has a chat template. */

import { textArea } from "../components/fields.js";
import { generationFields } from "../components/generation_fields.js";
import { InputError } from "../components/problem.js";
import { streamView } from "../components/stream_view.js";
import { button, el } from "../dom.js";

const TOLD = [
  { role: "user", content: "My name is Torsten. My car is red." },
  { role: "assistant", content: "Nice to meet you, Torsten. I see." },
];
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
];

function create() {
  const turns = []; // {role, content}: what has been said
  const system = textArea("System message", { field: "messages", rows: 2 });
  const message = textArea("Message", { field: "messages", rows: 3, value: "My name is Torsten. My car is red." });
  const generation = generationFields({ temperature: 0.7, tokens: 200 });
  const clear = button("Start over", () => {
    continueFrom([]);
    message.input.focus();
  }, { class: "quiet", hidden: true });
  message.element.append(clear);

  function continueFrom(said) {
    turns.splice(0, turns.length, ...said);
    clear.hidden = turns.length === 0;
  }

  function fill(example) {
    system.value = example.system ?? "";
    message.value = example.message;
    generation.set({ temperature: 0 });
    continueFrom(example.turns);
  }

  const messages = () => {
    const first = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
    return [...first, ...turns, { role: "user", content: message.value.trim() }];
  };

  return {
    fields: [message.element, ...generation.fields],
    options: [system.element, ...generation.options],
    examples: EXAMPLES.map((example) => ({ label: example.label, apply: () => fill(example) })),
    request() {
      if (message.value.trim() === "") throw new InputError("write a message", "messages");
      return { body: { messages: messages(), ...generation.value } };
    },
    stream() {
      const sent = messages();
      const view = streamView([]);
      const log = el("div", { class: "chat" }, ...sent.map(turn), view.element);
      return {
        ...view,
        element: log,
        end(isWhole) {
          view.end(isWhole);
          continueFrom([...turns, sent.at(-1), { role: "assistant", content: view.summary() }]);
          message.value = "";
        },
      };
    },
  };
}

const SPEAKERS = { system: "System", user: "You", assistant: "Model" };

function turn({ role, content }) {
  return el("div", { class: `turn ${role}` }, el("h4", {}, SPEAKERS[role]), el("p", {}, content));
}

export default {
  task: "chat",
  title: "Chat",
  lead: "A conversation, laid out by the model's own template.",
  action: "Send",
  code: { input: "messages", result: "item.text" },
  create,
};
