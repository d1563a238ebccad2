/** `chat`: a conversation, for models whose checkpoint has a chat template. */

import { textArea } from "../components/fields.js";
import { generationFields } from "../components/generation_fields.js";
import { InputError } from "../components/problem.js";
import { streamView } from "../components/stream_view.js";
import { button, el } from "../dom.js";

function create() {
  const turns = []; // {role, content}: what has been said
  const system = textArea("System message", { field: "messages", rows: 2 });
  const message = textArea("Message", { field: "messages", rows: 3, value: "Name a colour." });
  const generation = generationFields({ temperature: 0.7, tokens: 200 });
  const clear = button("Start over", () => {
    turns.length = 0;
    clear.hidden = true;
    message.input.focus();
  }, { class: "quiet", hidden: true });
  message.element.append(clear);

  const messages = () => {
    const first = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
    return [...first, ...turns, { role: "user", content: message.value.trim() }];
  };

  return {
    fields: [message.element, ...generation.fields],
    options: [system.element, ...generation.options],
    request() {
      if (message.value.trim() === "") throw new InputError("write a message", "messages");
      return { body: { messages: messages(), ...generation.value } };
    },
    stream() {
      const asked = message.value.trim();
      const view = streamView([]);
      const log = el("div", { class: "chat" }, ...turns.map(turn), turn({ role: "user", content: asked }), view.element);
      return {
        ...view,
        element: log,
        end(isWhole) {
          view.end(isWhole);
          turns.push({ role: "user", content: asked }, { role: "assistant", content: view.summary() });
          message.value = "";
          clear.hidden = false;
        },
      };
    },
  };
}

const SPEAKERS = { user: "You", assistant: "Model" };

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
