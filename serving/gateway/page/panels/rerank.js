/** `rerank`: documents in the order of their relevance to a question. */

import { bars } from "../components/bars.js";
import { textField } from "../components/fields.js";
import { InputError, itemProblem } from "../components/problem.js";
import { rowsField } from "../components/rows.js";
import { el } from "../dom.js";

const EXAMPLES = [
  {
    label: "Who sold the lamp?",
    query: "Who sold the old lamp in Paris last Friday?",
    documents: [
      "Pedro bought the old lamp in London yesterday.",
      "Last Friday, the old lamp was sold in Paris by Ana.",
      "Last Friday, Elena washed two shirts in Rome.",
    ],
  },
];

function create() {
  const query = textField("Question", { field: "query" });
  const documents = rowsField("Documents", {
    columns: ["document"], field: "documents", noun: "document", least: 2,
  });
  const apply = (example) => {
    query.value = example.query;
    documents.value = example.documents.map((text) => [text]);
  };
  apply(EXAMPLES[0]);

  return {
    fields: [query.element, documents.element],
    examples: EXAMPLES.map((example) => ({ label: example.label, apply: () => apply(example) })),
    request() {
      const texts = documents.value.map(([text]) => text);
      if (query.value.trim() === "") throw new InputError("write a question", "query");
      if (!texts.length) throw new InputError("write the documents to rank", "documents");
      return { body: { query: query.value, documents: texts } };
    },
    show: ([item], { body }) =>
      item.error ? itemProblem(item.error) : view(item.results, body.documents),
    summary: ([item], { body }) => body.documents[item.results?.[0]?.index] ?? "no result",
  };
}

function view(results, texts) {
  const scored = results.filter(({ error }) => !error);
  const failed = results.filter(({ error }) => error);
  const isShare = scored.every(({ score }) => score >= 0 && score <= 1);
  const largest = Math.max(...scored.map(({ score }) => Math.abs(score)));
  const scale = isShare ? {} : { format: (score) => score.toFixed(2), share: (score) => score / largest };
  return el(
    "div", { class: "items" },
    bars(scored.map(({ index, score }) => ({ label: texts[index], score })), scale),
    ...failed.map(({ index, error }) => el("article", {}, el("p", {}, texts[index]), itemProblem(error))),
  );
}

export default {
  task: "rerank",
  title: "Rerank",
  lead: "Documents in the order in which they answer a question.",
  action: "Rank",
  code: { input: "query", result: "item.results" },
  create,
};
