/** `answer`: the answers to a question, marked in the passages that have them. */

import { checkField, numberField, textField } from "../components/fields.js";
import { InputError, itemProblem } from "../components/problem.js";
import { rowsField } from "../components/rows.js";
import { el, percent } from "../dom.js";

const EVENTS = [
  "It was Laura who found the suitcase in Paris last Saturday. Laura found the old lamp in the garden last Monday.",
  "Last Monday, the suitcase was found in Kugfen by Pedro.",
];
const EXAMPLES = [
  { label: "Where was it found?", question: "Where did Pedro find the suitcase last Monday?", passages: EVENTS },
  { label: "Who found it?", question: "Who found the suitcase in Paris last Saturday?", passages: EVENTS },
  { label: "No answer", question: "When did Elena cut the bread in Madrid?", passages: EVENTS },
];

function create() {
  const question = textField("Question", { field: "question" });
  const passages = rowsField("Passages", {
    columns: ["passage"], field: "passages", noun: "passage", least: 1,
  });
  const count = numberField("Answers", { field: "n", value: 1, min: 1, max: 20, step: 1 });
  const mayBeNone = checkField("There may be no answer", { field: "null_threshold", value: true });
  const apply = (example) => {
    question.value = example.question;
    passages.value = example.passages.map((text) => [text]);
  };
  apply(EXAMPLES[0]);

  return {
    fields: [question.element, passages.element, count.element, mayBeNone.element],
    examples: EXAMPLES.map((example) => ({ label: example.label, apply: () => apply(example) })),
    request() {
      const texts = passages.value.map(([text]) => text);
      if (question.value.trim() === "") throw new InputError("write a question", "question");
      if (!texts.length) throw new InputError("write the passages to read", "passages");
      const threshold = mayBeNone.value ? 0 : null;
      const body = { question: question.value, passages: texts, n: count.value, null_threshold: threshold };
      return { body };
    },
    show: ([item], { body }) =>
      item.error ? itemProblem(item.error) : view(item.answers, body.passages),
    summary: ([item]) => (item.answers ?? []).map(nameOf).join(", ") || "no result",
  };
}

function nameOf({ passage, text }) {
  return passage === undefined || passage === null ? "no answer" : text;
}

function view(answers, passages) {
  const listed = answers.map((answer) =>
    el("li", {}, el("strong", {}, nameOf(answer)), ` ${percent(answer.score)}`),
  );
  const texts = passages.map((text, index) => {
    const own = answers.filter(({ passage }) => passage === index);
    own.sort((first, second) => first.start - second.start);
    return el("p", { class: "text tagged" }, ...marked(text, own));
  });
  return el("div", { class: "items" }, el("ol", {}, ...listed), ...texts);
}

/** The text in parts. Offsets count code points, which JavaScript's strings do not. */
function marked(text, answers) {
  const characters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const { start, end, score } of answers) {
    const words = characters.slice(start, end).join("");
    parts.push(characters.slice(at, start).join(""));
    parts.push(el("mark", { class: "tag-0", title: percent(score) }, words));
    at = end;
  }
  return [...parts, characters.slice(at).join("")];
}

export default {
  task: "answer",
  title: "Answer",
  lead: "Parts of passages that answer a question.",
  action: "Answer",
  code: { input: "question", result: "[(answer.text, answer.score) for answer in item.answers]" },
  create,
};
